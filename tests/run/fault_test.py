"""Nothing is lost: two-rank runs are killed at random instants, and what a resumed run ends with has the bits of one
that never stopped.

RANKTUNE_TEST_SEED repeats a run of this file, RANKTUNE_TEST_KILLS sets the number of kills (10),
RANKTUNE_TEST_FAULTS that of the calls to the file system that fail (6), RANKTUNE_TEST_FLIPS that of the bits flipped
(3)."""

import collections
import errno
import os
import pathlib
import random
import shutil
import signal
import time
import unittest

import h5py

import harness

SEED = int(os.environ.get("RANKTUNE_TEST_SEED", random.SystemRandom().randrange(10**6)))
SHIM = os.environ.get("RANKTUNE_FAULT_SHIM", "")
FAULTS = int(os.environ.get("RANKTUNE_TEST_FAULTS", 6))
FLIPS = int(os.environ.get("RANKTUNE_TEST_FLIPS", 3))
KILLS = int(os.environ.get("RANKTUNE_TEST_KILLS", 10))
STEPS = 12


def arrays(checkpoint):
    """Parameters and both moments of a checkpoint."""
    with h5py.File(checkpoint / "state.h5") as state:
        return {name: state["arrays"][name][()] for name in state["arrays"]}


def last_step(output):
    """The step of the newest finished checkpoint; 0 without one."""
    found = harness.checkpoints(output)
    return int(found[-1].name[-6:]) if found else 0


def starts_of_attempts(output):
    """The step that each attempt began with, by the number of its segment."""
    starts = {}
    for path in (output / "metrics").glob("segment-????.h5"):
        with h5py.File(path, "r", swmr=True) as segment:
            starts[int(path.stem[-4:])] = int(segment.attrs["resumed_from_step"])
    return starts


def phase_of(job):
    """What the run said last: its first word."""
    lines = [line.split() for line in job.text().splitlines() if line.strip() and not line.startswith(" ")]
    return "said: " + lines[-1][0].rstrip(":") if lines else "said nothing yet"


def leftovers(output):
    return [p.name for p in output.rglob("*") if ".tmp-" in p.name or ".old-" in p.name or p.name == "run.lock"]


class FaultTest(harness.RunTest):
    config = harness.llama_config(hidden_size=96, intermediate_size=256, head_dim=24, num_hidden_layers=3)
    recipe = {"max_steps": STEPS, "save_steps": 1, "gradient_accumulation_steps": 4}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        print(f"RANKTUNE_TEST_SEED={SEED}", flush=True)
        cls.reference = None

    def uninterrupted(self):
        """The folder of the run that never stopped, made once, and the seconds that it took."""
        if self.reference is None:
            type(self).reference = self.new_output()
            type(self).seconds = self.train(2, self.reference, **self.recipe).seconds
        return self.reference

    def assert_promised(self, output):
        """The newest checkpoint has the bits that the uninterrupted run had at its step. Returns the step."""
        step = last_step(output)
        if step > 0:
            name = f"checkpoint-{step:06}"
            self.assert_same_bits(arrays(self.reference / name), arrays(output / name))
        return step

    def assert_whole(self, output):
        self.assert_same_bits(harness.adapter(self.reference / "adapter"), harness.adapter(output / "adapter"))
        self.assertEqual(self.assert_promised(output), STEPS)
        rows = harness.steps(output)
        self.assertEqual(rows["step"].tolist(), list(range(1, STEPS + 1)), "every step once")
        self.assert_same_rows(harness.steps(self.reference), rows)
        pairs = [(int(row["step"]), int(row["rank"])) for row in harness.table(output, "/train/ranks")]
        self.assertEqual(sorted(pairs), [(step, rank) for step in range(1, STEPS + 1) for rank in range(2)])
        self.assertEqual(leftovers(output), [])


class Kill(FaultTest):
    victims = ["everything", "both ranks", "rank 0", "rank 1", "mpirun"]
    moments = ["any time", "starting", "tokenising", "loading", "a step", "a checkpoint", "a checkpoint", "the end"]

    def wait_for_moment(self, job, output, moment, generator):
        began = time.monotonic()

        def after(low, high):
            pause = generator.uniform(low, high) * self.seconds
            job.wait_for(lambda: time.monotonic() - began > pause)

        if moment == "any time":
            after(0, 1)
        elif moment == "starting":
            after(0, 0.4)
        elif moment in ("tokenising", "loading"):
            job.wait_for(lambda: moment in job.text())
            time.sleep(generator.uniform(0, 0.02))
        elif moment == "a step":
            job.wait_for_step(generator.randint(min(last_step(output) + 1, STEPS), STEPS))
            time.sleep(generator.uniform(0, 0.03))
        elif moment == "a checkpoint":
            wanted = generator.randint(0, STEPS - 1)
            job.wait_for(lambda: any(output.glob("checkpoint-*.tmp-*")) and last_step(output) >= wanted)
            time.sleep(generator.uniform(0, 0.01))
        else:
            job.wait_for(lambda: "saving the adapter" in job.text())
            time.sleep(generator.uniform(0, 0.05))

    def strike(self, job, victim):
        """SIGKILL; all processes of the job are gone afterwards. False if it was through before."""
        ranks = job.rank_pids()
        if victim == "everything" or len(ranks) < 2:
            return job.kill()
        mine = {"both ranks": ranks, "rank 0": ranks[:1], "rank 1": ranks[1:], "mpirun": [job.process.pid]}[victim]
        if not job.running():
            return False
        for pid in mine:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        began = time.monotonic()
        done = job.finish(30)
        while any(harness.alive(pid) for pid in ranks):
            self.assertLess(time.monotonic() - began, 30, f"ranks live on without {victim}\n{done}")
            time.sleep(0.005)
        return done.code != 0

    def test_killed_at_random_instants(self):
        self.uninterrupted()
        generator = random.Random(SEED)
        tally, kills, runs = collections.Counter(), 0, 0
        while kills < KILLS:
            runs += 1
            # Whatever is not the recipe's may change; with a limit checkpoints are deleted as well.
            limit = generator.choice([None, 1, 2])
            output, cache = self.new_output(), self.folder / f"cache-{runs}"
            promised, known, story = 0, set(), []
            while True:
                moment, victim = generator.choice(self.moments), generator.choice(self.victims)
                struck = False
                job = self.start(2, output, self.environment(RANKTUNE_CACHE=str(cache)), **self.recipe,
                                 save_total_limit=limit, resume="auto")
                if kills < KILLS:
                    self.wait_for_moment(job, output, moment, generator)
                    struck = self.strike(job, victim)
                with self.subTest(seed=SEED, run=runs, story=story, moment=moment, victim=victim):
                    if not struck:
                        done = job.finish()
                        self.assertEqual(done.code, 0, done)
                    step = self.assert_promised(output)
                    self.assertGreaterEqual(step, promised, "a finished checkpoint is gone")
                    for number, resumed in starts_of_attempts(output).items():
                        if number not in known:
                            self.assertGreaterEqual(resumed, promised, "it went further back than it had to")
                            known.add(number)
                    promised = step
                    if struck:
                        kills += 1
                        story.append(f"{victim}, {moment}, checkpoint {step}")
                        tally[victim] += 1
                        tally[f"at {moment}"] += 1
                        tally[phase_of(job)] += 1
                if not struck:
                    break
            with self.subTest(seed=SEED, run=runs, story=story):
                self.assert_whole(output)
            shutil.rmtree(output)
            shutil.rmtree(cache, ignore_errors=True)
        print(f"{kills} kills in {runs} runs: {dict(tally)}", flush=True)


@unittest.skipUnless(SHIM, "RANKTUNE_FAULT_SHIM names no shim (a build with sanitizers has none)")
class Storage(FaultTest):
    """Every call to the file system while a checkpoint is written can fail. The earlier checkpoints stand."""

    at = 6  # the checkpoint in whose time the calls fail

    def faulty(self, output, log, **faults):
        return self.environment(LD_PRELOAD=SHIM, FAULT_BELOW=str(output), FAULT_LOG=str(log), **faults)

    def calls_of_a_checkpoint(self):
        """Number and text of each call from the first for the checkpoint to the first for the next one."""
        output, log = self.new_output(), self.folder / "calls"
        done = self.start(2, output, self.faulty(output, log), **self.recipe).finish()
        self.assertEqual(done.code, 0, done)
        self.assert_whole(output)
        lines = log.read_text().splitlines()
        first, last = (next(i for i, line in enumerate(lines) if f"/checkpoint-{step:06}.tmp-" in line)
                       for step in (self.at, self.at + 1))
        return {i + 1: lines[i].replace(str(output), "") for i in range(first, last)}

    def sample(self, calls, generator):
        """FAULTS of the calls, of every function on every file before a second one of any."""
        groups = {}
        for number, call in calls.items():
            groups.setdefault(call.split(".tmp-")[0] + call.rsplit("/", 1)[-1], []).append(number)
        for group in groups.values():
            generator.shuffle(group)
        turns = [[group[turn] for group in groups.values() if turn < len(group)] for turn in range(len(calls))]
        for turn in turns:
            generator.shuffle(turn)
        return [number for turn in turns for number in turn][:FAULTS]

    def test_failing_calls(self):
        self.uninterrupted()
        generator = random.Random(SEED)
        calls = self.calls_of_a_checkpoint()
        sample = self.sample(calls, generator)
        for number in sample:
            error, stays = generator.choice([errno.ENOSPC, errno.EIO]), generator.random() < 0.5
            with self.subTest(seed=SEED, number=number, call=calls[number], error=error, stays=stays):
                output, log = self.new_output(), self.folder / f"calls-{number}"
                faults = {"FAULT_AT": str(number), "FAULT_ERRNO": str(error), **({"FAULT_STAYS": "1"} if stays else {})}
                done = self.start(2, output, self.faulty(output, log, **faults), **self.recipe).finish(60)
                failed = pathlib.Path(log.read_text().splitlines()[number - 1].split(" ", 1)[1])
                self.assertEqual(done.code, 1, done)
                self.assertEqual(len(done.sentences()), 1, done)
                self.assertIn(os.strerror(error), done.sentences()[0])
                self.assertIn(str(failed.parent), done.sentences()[0])
                self.assertIn(failed.name, done.sentences()[0])
                self.assertGreaterEqual(self.assert_promised(output), self.at - 1)
                self.train(2, output, **self.recipe, resume="auto")
                self.assert_whole(output)
                shutil.rmtree(output)
        print(f"{len(sample)} of {len(calls)} calls failed", flush=True)


class Damage(FaultTest):
    def test_a_flipped_bit_of_the_newest_checkpoint(self):
        """Found in whichever file and at whichever bit, and named; the checkpoint before it is used."""
        self.uninterrupted()
        generator = random.Random(SEED)
        for flip in range(FLIPS):
            output = self.new_output()
            shutil.copytree(self.reference, output)
            newest = harness.checkpoints(output)[-1]
            file = generator.choice(sorted(p for p in newest.rglob("*") if p.is_file()))
            content = bytearray(file.read_bytes())
            bit = generator.randrange(8 * len(content))
            content[bit // 8] ^= 1 << bit % 8
            file.write_bytes(content)
            with self.subTest(seed=SEED, flip=flip, file=file.name, bit=bit):
                done = self.train(2, output, **self.recipe, resume="auto")
                found = [line for line in done.errors.splitlines() if f"{newest} is not used: " in line]
                self.assertEqual(len(found), 1, done)
                self.assertIn(str(file.relative_to(newest)), found[0].split("is not used: ")[1])
                self.assertIn(("resume", STEPS - 1, f"checkpoint-{STEPS - 1:06}"), harness.events(output))
                self.assert_whole(output)
            shutil.rmtree(output)


if __name__ == "__main__":
    unittest.main()
