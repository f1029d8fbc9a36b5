"""Reads and draws what ranktune runs have recorded. Needs h5py; matplotlib for figures, pandas for data frames,
tensorboard for event files.

    import ranktune_report

    run = ranktune_report.load("outputs")            # an --output_dir, also of a live or killed run, or a metrics.h5
    run.steps["loss"], run.steps["step"]             # NumPy structured arrays: steps, ranks, evaluations, events
    run.attributes["recipe"]                         # of the last attempt; run.attempts has those of all
    run.frame("steps")                               # the same as a pandas.DataFrame
    ranktune_report.plot([run], "run.svg", panels=["loss", "epoch"])

    ranktune_report.to_tensorboard(run, "logs/run")  # event files for TensorBoard

    python3 ranktune_report.py FIGURE RUN... [--panels loss,epoch,...]

Columns and units are those of docs/metrics.md."""

import argparse
import importlib
import pathlib
import re
import sys

TABLES = {"steps": "/train/steps", "ranks": "/train/ranks", "evaluations": "/eval", "events": "/events"}
PANELS = ["loss", "epoch", "learning_rate", "grad_norm", "tokens", "waiting"]


class ReportError(Exception):
    """A sentence for the user: what is wrong and what to do."""


def _need(package, purpose):
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.split(".")[0]
        raise ReportError(f"{sys.executable} has no usable {name} ({error}), which {purpose} needs: install it there, or "
                          "name another Python in RANKTUNE_PYTHON") from None


class Run:
    """What `load` returns.

    name         what was asked for
    attributes   dict, root attributes of the last attempt (docs/metrics.md)
    attempts     list of such dicts, oldest first
    steps, ranks, evaluations, events
                 structured arrays, one row a step, a step and rank, an evaluation, an event; each step once, as the last
                 attempt that did it has it
    problems     a sentence for each segment that could not be read"""

    def __init__(self, name, attempts, tables, problems):
        self.name = name
        self.attempts = attempts
        self.attributes = attempts[-1] if attempts else {}
        self.steps, self.ranks, self.evaluations, self.events = (tables[table] for table in TABLES)
        self.problems = problems

    def frame(self, table="steps"):
        """One of the tables as a pandas.DataFrame; texts are str."""
        pandas = _need("pandas", "a data frame")
        rows = getattr(self, table)
        frame = pandas.DataFrame({name: rows[name] for name in rows.dtype.names})
        for name in rows.dtype.names:
            if rows.dtype[name].kind == "S":
                frame[name] = [text.decode() for text in rows[name]]
        return frame


def _open(path):
    h5py = _need("h5py", "reading metrics")
    try:
        return h5py.File(path, "r", locking=False)
    except OSError:
        # A segment that is being written, or was when its process died, opens in this way only.
        return h5py.File(path, "r", swmr=True, locking=False)


def _attributes(group):
    """The attributes of a file or group; long ones are datasets in its group `provenance`."""
    found = {}
    for name, value in group.attrs.items():
        if value == f"see provenance/{name}":
            value = group["provenance"][name].asstr()[()]
        found[name] = value.item() if hasattr(value, "item") else value
    return found


def _read(path):
    """Attributes of the file, of the attempts in it by number, and its tables; (None, sentence) where it is damaged."""
    try:
        with _open(path) as file:
            own = _attributes(file)
            held = {int(name): _attributes(group) for name, group in file.get("attempts", {}).items()}
            tables = {table: file[place][:] for table, place in TABLES.items()}
            attempts = held or {own["attempt"]: own}
    except (OSError, KeyError, RuntimeError) as error:
        return None, f"cannot read {path}: {error}"
    # -1 is room for a row that is not written yet.
    return (own, attempts, {table: rows[rows["step"] >= 0] for table, rows in tables.items()}), None


def _join(parts):
    """The tables of consecutive attempts, [(resumed_from_step, tables)], as one: later attempts repeat steps."""
    numpy = importlib.import_module("numpy")
    joined = {table: [] for table in TABLES}
    last = float("inf")
    for resumed_from, tables in reversed(parts):
        for table, rows in tables.items():
            joined[table].insert(0, rows if table == "events" else rows[rows["step"] <= last])
        last = min(last, resumed_from)
    return {table: numpy.concatenate(rows) for table, rows in joined.items()}


def load(run):
    """The Run of an --output_dir, whose run may be going on or have been killed, or of a metrics.h5.

    An --output_dir is read from the segments of its attempts; where one of those that metrics.h5 holds for good is
    missing or damaged, from metrics.h5 and the segments after it."""
    path = pathlib.Path(run)
    whole, why = None, None
    merged = path / "metrics.h5" if path.is_dir() else path
    if merged.is_file():
        whole, why = _read(merged)
    held = whole[0].get("last_segment", 0) if whole else 0
    segments = {int(s.stem.removeprefix("segment-")): s for s in path.glob("metrics/segment-*.h5")
                if re.fullmatch(r"segment-\d{4,9}", s.stem)}
    found, problems = {}, []
    for number in sorted(segments):
        content, problem = _read(segments[number])
        if content:
            found[number] = content
        elif number > held:
            problems.append(problem)
    if any(number not in found for number in range(1, held + 1)):
        own, attempts, tables = whole
        tables["events"] = tables["events"][:own["final_events"]]
        own = {**own, "resumed_from_step": 0}
        first = {number: one for number, one in attempts.items() if number <= held}
        found = {held: (own, first, tables), **{number: one for number, one in found.items() if number > held}}
    if not found and not problems and whole:
        found = {held: whole}
    if not found:
        reason = f" ({(problems + [why])[0]})" if problems or why else ""
        raise ReportError(f"{run} holds no metrics of a run{reason}: give the --output_dir of a training run, or its "
                          "metrics.h5")
    attempts = {number: one for _, held_by_file, _ in found.values() for number, one in held_by_file.items()}
    parts = [(own["resumed_from_step"], tables) for own, _, tables in found.values()]
    return Run(str(run), [attempts[number] for number in sorted(attempts)], _join(parts), problems)


def _smoothed(values, window):
    """The mean of the last `window` values at each place, of fewer at the beginning."""
    numpy = importlib.import_module("numpy")
    sums = numpy.concatenate([[0.0], numpy.cumsum(values)])
    ends = numpy.arange(1, len(values) + 1)
    starts = numpy.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _draw(axes, panel, run, color, width, label):
    """One run in one panel; times are those of the steps alone, so that pauses between attempts do not count."""
    numpy = importlib.import_module("numpy")
    steps = run.steps
    window = max(1, len(steps) // 20)
    minutes = numpy.cumsum(steps["step_seconds"]) / 60
    if panel == "loss":
        axes.plot(steps["step"], steps["loss"], color=color, linewidth=width / (2 if window > 1 else 1), alpha=0.4 if window > 1 else 1,
                  label=label if window == 1 else None)
        if window > 1:
            axes.plot(steps["step"], _smoothed(steps["loss"], window), color=color, linewidth=width, label=label)
        if len(run.evaluations):
            axes.plot(run.evaluations["step"], run.evaluations["loss"], "o--", color=color, markersize=4, linewidth=0.8,
                      label=f"{label}, evaluation")
        axes.set(xlabel="step", ylabel="loss [nat/token]")
    elif panel == "epoch":
        axes.plot(minutes, steps["epoch"], color=color, linewidth=width, label=label)
        axes.set(xlabel="time in steps [min]", ylabel="epochs done")
    elif panel == "learning_rate":
        axes.plot(steps["step"], steps["learning_rate"], color=color, linewidth=width, label=label)
        axes.set(xlabel="step", ylabel="learning rate")
    elif panel == "grad_norm":
        axes.plot(steps["step"], steps["grad_norm"], color=color, linewidth=width, label=label)
        axes.set(xlabel="step", ylabel="gradient norm")
    elif panel == "tokens":
        speed = _smoothed(steps["tokens"], window) / numpy.maximum(_smoothed(steps["step_seconds"], window), 1e-12)
        axes.plot(steps["step"], speed, color=color, linewidth=width, label=label)
        axes.set(xlabel="step", ylabel="tokens/s")
    elif panel == "waiting":
        for rank in numpy.unique(run.ranks["rank"]):
            rows = run.ranks[run.ranks["rank"] == rank]
            window = max(1, len(rows) // 20)
            both = _smoothed(rows["waiting_seconds"] + rows["compute_seconds"], window)
            share = 100 * _smoothed(rows["waiting_seconds"], window) / numpy.maximum(both, 1e-12)
            axes.plot(rows["step"], share, color=color, linewidth=0.9, alpha=1.0 if rank == 0 else 0.5,
                      label=label if rank == 0 else None)
        axes.set(xlabel="step", ylabel="waiting, each rank [%]")


def plot(runs, target=None, panels=None, labels=None, title=None):
    """A matplotlib Figure of one or several runs, written to `target` (.png, .svg, .pdf) where that is given.

    runs    Runs, or what load() takes
    panels  some of PANELS, all by default: loss over steps with its mean over a twentieth of the run, epochs over time,
            learning rate, gradient norm, tokens per second, and each rank's share of time spent waiting for others
    labels  names in the legend, those of the runs by default"""
    panels = list(panels or PANELS)
    for panel in panels:
        if panel not in PANELS:
            raise ReportError(f"'{panel}' is no panel of a figure: give some of {', '.join(PANELS)}")
    ending = pathlib.Path(target).suffix.lower() if target else ".svg"
    no_date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": None}
    if ending not in no_date:
        raise ReportError(f"'{target}' does not end in .png, .svg or .pdf, so the form of the figure is open")
    matplotlib = _need("matplotlib", "a figure")
    figure_module = _need("matplotlib.figure", "a figure")
    runs = [run if isinstance(run, Run) else load(run) for run in runs]
    empty = [run.name for run in runs if len(run.steps) == 0]
    if empty:
        raise ReportError(f"{empty[0]} has no step yet that could be drawn")
    labels = list(labels or [run.name for run in runs])
    columns = 2 if len(panels) > 1 else 1
    rows = -(-len(panels) // columns)
    with matplotlib.rc_context({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "ranktune"}):
        figure = figure_module.Figure(figsize=(5.2 * columns, 3.0 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        colors = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#999999", "#000000"]
        for axes, panel in zip(grid, panels):
            for i, run in enumerate(runs):
                # Later ones are thinner, so that equal curves can be seen to be equal.
                width = 1.2 + 1.4 * min(3, len(runs) - 1 - i)
                _draw(axes, panel, run, colors[i % len(colors)], width, labels[i])
            if panel in ("tokens", "waiting"):
                axes.set_ylim(bottom=0)  # when all is drawn: it ends the search for limits
            axes.spines[["top", "right"]].set_visible(False)
        for axes in grid[len(panels):]:
            axes.set_axis_off()
        if len(runs) > 1 or len(runs[0].evaluations):
            grid[0].legend(frameon=False)
        if title:
            figure.suptitle(title)
        if target:
            try:
                figure.savefig(target, dpi=150, metadata=no_date[ending])
            except OSError as error:
                raise ReportError(f"cannot write {target}: {error.strerror or error}") from None
    return figure


def _wall_times(run):
    """When each step was done, in seconds since 1970: the start of its attempt, and the times of the steps since."""
    numpy = importlib.import_module("numpy")
    begins = run.events[numpy.isin(run.events["kind"], [b"start", b"resume"])]
    done = numpy.concatenate([[0.0], numpy.cumsum(run.steps["step_seconds"])])
    times = numpy.zeros(len(run.steps))
    for begin in begins:  # a later attempt's steps replace those of earlier ones
        first = numpy.searchsorted(run.steps["step"], begin["step"], side="right")
        times[first:] = begin["time"] + done[first + 1:] - done[first]
    return dict(zip(run.steps["step"].tolist(), times.tolist()))


def to_tensorboard(run, folder):
    """Writes steps and evaluations of a Run, or of what load() takes, as event files of TensorBoard into `folder`."""
    events = _need("tensorboard.compat.proto.event_pb2", "event files")
    summaries = _need("tensorboard.compat.proto.summary_pb2", "event files")
    writer = _need("tensorboard.summary.writer.event_file_writer", "event files").EventFileWriter(str(folder))
    run = run if isinstance(run, Run) else load(run)
    times = _wall_times(run)

    def write(row, prefix, names):
        values = [summaries.Summary.Value(tag=f"{prefix}/{name}", simple_value=row[name]) for name in names]
        writer.add_event(events.Event(wall_time=times.get(int(row["step"]), 0.0), step=int(row["step"]),
                                      summary=summaries.Summary(value=values)))

    for row in run.steps:
        write(row, "train", ["loss", "learning_rate", "grad_norm", "epoch", "tokens", "step_seconds"])
    for row in run.evaluations:
        write(row, "eval", ["loss", "perplexity"])
    writer.close()


def main(words=None):
    parser = argparse.ArgumentParser(prog="ranktune_report.py", description="Draws what ranktune runs have recorded.")
    parser.add_argument("figure", help="file to write: .png, .svg or .pdf")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="--output_dir of a run, or a metrics.h5")
    parser.add_argument("--panels", default=",".join(PANELS), help="some of %(default)s")
    options = parser.parse_args(words)
    try:
        plot(options.runs, options.figure, panels=options.panels.split(","))
    except ReportError as error:
        print(f"ranktune: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
