"""What a run writes to metrics.h5: every step, every rank, what happened, and where the numbers come from."""

import csv
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

import h5py
import numpy as np

import harness

REPORT = pathlib.Path(__file__).resolve().parents[2] / "src" / "report"
sys.path.insert(0, str(REPORT))
import ranktune_report  # noqa: E402


class Metrics(harness.RunTest):
    rows = 20
    shape = {"max_steps": 7, "save_steps": 3}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.output = cls.folder / "measured"
        test = cls("test_steps")
        cls.finished = test.train(2, cls.output, **cls.shape)
        test.doCleanups()

    def test_steps(self):
        rows = harness.steps(self.output)
        self.assertEqual(rows.dtype.names, ("step", "epoch", "samples", "tokens", "target_tokens", "loss", "learning_rate",
                                            "grad_norm", "step_seconds", "data_seconds", "compute_seconds",
                                            "communication_seconds"))
        self.assertEqual(rows["step"].tolist(), list(range(1, 8)))
        self.assertEqual(rows["samples"].tolist(), [4] * 7)
        np.testing.assert_allclose(rows["epoch"], np.arange(1, 8) * 4 / 20)
        self.assertEqual(rows["target_tokens"].tolist(), (rows["tokens"] - rows["samples"]).tolist(),
                         "each sample's first token has nothing to be predicted from")
        self.assertTrue((rows["loss"] > 0).all() and (rows["grad_norm"] > 0).all())
        np.testing.assert_allclose(rows["learning_rate"], [0, 1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 2.5e-3], rtol=1e-12)
        for part in ["data_seconds", "compute_seconds", "communication_seconds"]:
            self.assertTrue((rows[part] >= 0).all(), part)
        parts = rows["data_seconds"] + rows["compute_seconds"] + rows["communication_seconds"]
        self.assertTrue((parts <= 1.01 * rows["step_seconds"] + 1e-3).all(), (parts, rows["step_seconds"]))
        self.assertTrue((rows["step_seconds"] > 0).all())
        self.assertLess(rows["step_seconds"].sum(), self.finished.seconds)

    def test_ranks(self):
        rows = harness.table(self.output, "/train/ranks")
        pairs = [(int(row["step"]), int(row["rank"])) for row in rows]
        self.assertEqual(sorted(pairs), [(step, rank) for step in range(1, 8) for rank in range(2)])
        for step in harness.steps(self.output):
            self.assertEqual(rows[rows["step"] == step["step"]]["tokens"].sum(), step["tokens"])
        self.assertTrue((rows["compute_seconds"] > 0).all() and (rows["waiting_seconds"] >= 0).all())

    def test_events(self):
        found = [(kind, step) for kind, step, _ in harness.events(self.output)]
        self.assertEqual(found, [("start", 0), ("checkpoint", 3), ("checkpoint", 6), ("checkpoint", 7), ("end", 7)])
        times = harness.table(self.output, "/events")["time"]
        self.assertTrue((np.diff(times) >= 0).all())
        self.assertGreater(times[0], 1.6e9)

    def test_units_and_meanings(self):
        with h5py.File(self.output / "metrics.h5", "r") as file:
            for name in ["/train/steps", "/train/ranks", "/eval", "/events"]:
                dataset = file[name]
                for field in dataset.dtype.names:
                    self.assertTrue(dataset.attrs[field + ".unit"], field)
                    self.assertGreater(len(dataset.attrs[field + ".meaning"]), 3, field)
            self.assertEqual(file["/train/steps"].attrs["loss.unit"], "nat/token")
            self.assertEqual(len(file["/eval"]), 0)

    def test_provenance(self):
        found = harness.attributes(self.output)
        for name in ["software", "software_version", "git_revision", "date", "command_line", "configuration", "recipe",
                     "hosts", "devices", "communicator", "dataset_digest", "slurm_job_id", "libtorch_version", "mpi_version",
                     "hdf5_version", "cuda_runtime_version", "schema_version"]:
            self.assertIn(name, found)
        self.assertEqual(found["software"], "ranktune")
        self.assertEqual((found["seed"], found["world_size"], found["nodes"]), (3407, 2, 1))
        self.assertEqual(found["hosts"].split(","), [os.uname().nodename] * 2)
        self.assertIn(str(self.output), found["command_line"])
        configuration = json.loads(found["configuration"])
        self.assertEqual((configuration["max_steps"], configuration["learning_rate"]), (7, 5e-3))
        self.assertNotIn("hub_token", configuration)

    def report(self, *words, code=0, **environment):
        """`ranktune report` without mpirun, where MPI could not start: what it prints, or where it fails, says."""
        environment = self.environment(OMPI_MCA_pml="none_such", **environment)
        done = subprocess.run([harness.BINARY, "report", *words], env=environment, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, done)
        return done.stderr if code else done.stdout

    def assert_helper_reads_the_same(self, path):
        """The Python helper and the program read the same tables and attributes."""
        theirs, = json.loads(self.report(path, "--format", "json"))
        ours = ranktune_report.load(path)
        for name in ["steps", "ranks", "evaluations"]:
            self.assertEqual([row.item() for row in getattr(ours, name)], [tuple(row.values()) for row in theirs[name]], name)
        self.assertEqual([row["message"].decode() for row in ours.events], [row["message"] for row in theirs["events"]])
        self.assertEqual(ours.attributes, theirs["attributes"])
        return ours

    def test_report(self):
        text = self.report(self.output)
        for part in ["finished, step 7 of 7", str(self.model), "4 samples = 2 ranks x 1 x 2 accumulated", "end after step 7"]:
            self.assertIn(part, text)
        run, = json.loads(self.report(self.output / "metrics.h5", "--format", "json"))
        self.assertEqual(run["attributes"]["world_size"], 2)
        for name, kind in [("steps", "/train/steps"), ("ranks", "/train/ranks")]:
            rows = harness.table(self.output, kind)
            self.assertEqual([tuple(row.values()) for row in run[name]], [row.item() for row in rows])
        self.assertEqual([(row["kind"], row["step"], row["message"]) for row in run["events"]], harness.events(self.output))

    def test_figures(self):
        python = {"RANKTUNE_PYTHON": sys.executable}
        figure = self.folder / "figure.svg"
        self.assertIn("finished", self.report(self.output, self.output / "metrics.h5", "--plot", figure, **python))
        text = figure.read_text()
        for part in ["loss [nat/token]", "epochs done", "learning rate", "gradient norm", "tokens/s", "waiting, each rank",
                     str(self.output / "metrics.h5")]:
            self.assertIn(part, text)
        ranktune_report.plot([self.output], self.folder / "one.png", panels=["epoch"])
        self.assertTrue((self.folder / "one.png").read_bytes().startswith(b"\x89PNG"))
        faster = ranktune_report.load(self.output)
        faster.steps["step_seconds"] /= 10
        axes, = ranktune_report.plot([self.output, faster], panels=["tokens"]).axes
        self.assertGreater(axes.get_ylim()[1], (faster.steps["tokens"] / faster.steps["step_seconds"]).max())
        for words, part in [(["--plot=a.jpg"], "a.jpg"), (["--plot=a.svg", "--panels=lost"], "'lost' is no panel")]:
            said = self.report(self.output, *words, code=2, **python)
            self.assertRegex(said, "^ranktune: error: .*" + part)
            self.assertEqual(said.count("\n"), 1, said)
        said = self.report(self.output, "--plot=a.svg", code=2, RANKTUNE_PYTHON="/nonexistent/python")
        self.assertRegex(said, "^ranktune: error: --plot draws with Python.* cannot run '/nonexistent/python': .*RANKTUNE_PYTHON\n$")
        bare = harness.write_json(self.folder / "matplotlib.py", "not matplotlib").parent  # a string: no package in it
        said = self.report(self.output, "--plot=a.svg", code=2, PYTHONPATH=str(bare), **python)
        self.assertRegex(said, "^ranktune: error: .* has no usable matplotlib .*RANKTUNE_PYTHON\n$")

    def test_the_examples_of_the_documentation(self):
        text = pathlib.Path(__file__).parents[2].joinpath("docs", "metrics.md").read_text()
        examples = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "swmr" not in block]
        self.assertEqual(len(examples), 2)
        folder = self.folder / "examples"
        folder.mkdir()
        for name in ["outputs", "one_rank", "two_ranks"]:
            (folder / name).symlink_to(self.output)
        for example in examples:
            lines = [line for line in example.splitlines() if ".frame(" not in line]  # pandas is not in the test's Python
            subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=folder, check=True, capture_output=True,
                           env=self.environment(PYTHONPATH=str(REPORT)))
        self.assertIn("epochs done", (folder / "loss.svg").read_text())

    def test_a_killed_run_is_read_from_its_segment(self):
        output = self.new_output()
        job = self.start(2, output, max_steps=100000, save_steps=5)
        job.wait_for_step(12)
        self.assertTrue(job.kill())
        segment, = sorted((output / "metrics").glob("*.h5"))
        with h5py.File(segment, "r", swmr=True) as file:
            rows = file["/train/steps"][:]
        rows = rows[rows["step"] > 0]
        self.assertGreaterEqual(len(rows), 10)
        self.assertEqual(rows["step"].tolist(), list(range(1, len(rows) + 1)))
        found = list(csv.DictReader(io.StringIO(self.report(output, "--format", "csv"))))
        self.assertEqual([(int(row["step"]), float(row["loss"])) for row in found],
                         [(row["step"], row["loss"]) for row in rows])
        self.assertIn("the run is going on, or was killed", self.report(output))
        self.assertEqual(len(self.assert_helper_reads_the_same(output).steps), len(rows))
        if not harness.checkpoints(output):
            return  # killed while the first one was being written
        # Resumed, with rows to replace; then what is left where a file is gone.
        self.start(2, output, max_steps=100000, resume="auto", max_time=2).finish()
        self.assertIn("resume after step", self.report(output))
        run = self.assert_helper_reads_the_same(output)
        self.assertEqual(run.steps["step"].tolist(), list(range(1, len(run.steps) + 1)))
        self.assertEqual(len(run.attempts), 2)
        self.assertEqual(len(self.assert_helper_reads_the_same(output / "metrics.h5").steps), len(run.steps))
        segment.unlink()
        self.assertEqual(len(self.assert_helper_reads_the_same(output).steps), len(run.steps))

    def test_a_loss_that_is_not_finite(self):
        """It ends the run with 1 and says where; the steps before it and the checkpoint before it stay."""
        folder = harness.make_model(self.folder / "poisoned")
        tensors = harness.random_weights(self.config)
        tensors["model.embed_tokens.weight"][1] = np.inf  # <|pad|>, which no ordinary row holds
        harness.save_file(tensors, folder / "model.safetensors")
        rows = harness.make_rows(20)
        rows[14]["output"] += "<|pad|>"  # in file order: step 4, the third of its samples, so rank 1
        data = harness.write_json(self.folder / "poisoned.json", rows)
        output = self.new_output()
        done = self.train(2, output, expect=1, max_steps=7, save_steps=2, shuffle=False, model_name=folder, dataset=data)
        self.assertEqual(len(done.sentences()), 1, done)
        for part in ["step 4", "not finite", "rank 1", "14"]:
            self.assertIn(part, done.sentences()[0])
        self.assertFalse((output / "adapter").exists())
        self.assertEqual([p.name for p in harness.checkpoints(output)], ["checkpoint-000002"])
        segment, = sorted((output / "metrics").glob("*.h5"))
        with h5py.File(segment, "r", swmr=True) as file:
            found = file["/train/steps"]["step"]
        self.assertEqual(found[found > 0].tolist(), [1, 2, 3])


if __name__ == "__main__":
    unittest.main()
