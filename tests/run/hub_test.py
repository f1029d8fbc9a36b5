"""The guide's command as it stands, its names found in a Hugging Face cache made for the test."""

import os
import shutil
import unittest

import harness

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(harness.RunTest):
    rows = 40

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        model = harness.make_model(cls.folder / "qwen", harness.qwen3_config(), seed=2)
        cls.snapshot("models", "Qwen/Qwen3-8B", sorted(model.iterdir()))
        data = cls.folder / "alpaca_data_cleaned.json"
        shutil.copy(cls.data, data)
        cls.snapshot("datasets", "yahma/alpaca-cleaned", [data])

    @classmethod
    def snapshot(cls, kind, name, files, commit=COMMIT):
        """A repository in the cache as huggingface_hub lays it out: blobs, links to them, the commit of main."""
        repository = cls.folder / "huggingface" / "hub" / f"{kind}--{name.replace('/', '--')}"
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / "main").write_text(commit)
        for i, file in enumerate(files):
            blob = repository / "blobs" / f"{commit[:8]}{i}"
            blob.parent.mkdir(exist_ok=True)
            shutil.copy(file, blob)
            link = repository / "snapshots" / commit / file.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))
        return repository

    def test_the_command_of_the_guide(self):
        from transformers import AutoModelForCausalLM
        work = self.folder / "work"
        work.mkdir()
        command = ["train", "--model_name=Qwen/Qwen3-8B", "--dataset=yahma/alpaca-cleaned", "--learning_rate=2e-5",
                   "--max_seq_length=2048", "--per_device_train_batch_size=1", "--gradient_accumulation_steps=4",
                   "--max_steps=6", "--save_model"]
        environment = self.environment(CUDA_VISIBLE_DEVICES="")
        job = harness.Job(2, command, environment, work)
        self.addCleanup(job.close)
        done = job.finish()
        self.assertEqual(done.code, 0, done)
        self.assertEqual(sorted(p.name for p in work.iterdir()), ["model", "outputs"])
        self.assertEqual(AutoModelForCausalLM.from_pretrained(work / "model").config.model_type, "qwen3")
        rows = harness.steps(work / "outputs")
        self.assertEqual(rows["samples"].tolist(), [8, 8, 8, 8, 8, 8])
        # The guide's schedule: five steps of warm-up from 0.
        for found, expected in zip(rows["learning_rate"], [0, 4e-6, 8e-6, 1.2e-5, 1.6e-5, 2e-5]):
            self.assertAlmostEqual(found, expected, delta=1e-15)
        config = harness.json.loads((work / "outputs/adapter/adapter_config.json").read_text())
        self.assertEqual((config["base_model_name_or_path"], config["r"], config["lora_alpha"]), ("Qwen/Qwen3-8B", 16, 16))
        self.assertEqual(sorted(config["target_modules"]), sorted(harness.PROJECTIONS))

        again = harness.Job(2, command, environment, work)
        self.addCleanup(again.close)
        refused = again.finish()
        self.assertEqual(refused.code, 2, refused)
        self.assertEqual(len(refused.sentences()), 2, "both folders are there already")

    def test_places_of_the_cache(self):
        """HF_HUB_CACHE goes before HF_HOME, which goes before XDG_CACHE_HOME."""
        hub = self.folder / "huggingface" / "hub"
        xdg = self.folder / "xdg"
        (xdg / "huggingface").mkdir(parents=True)
        (xdg / "huggingface" / "hub").symlink_to(hub)
        nowhere = str(self.folder / "nowhere")
        for name, variables, code in [("HF_HUB_CACHE", {"HF_HUB_CACHE": str(hub), "HF_HOME": nowhere}, 0),
                                      ("XDG_CACHE_HOME", {"HF_HOME": "", "XDG_CACHE_HOME": str(xdg)}, 0),
                                      ("HF_HOME elsewhere", {"HF_HOME": nowhere, "XDG_CACHE_HOME": str(xdg)}, 2)]:
            with self.subTest(name):
                words = self.words(self.new_output(), model_name="Qwen/Qwen3-8B", dataset="yahma/alpaca-cleaned",
                                   max_steps=1)
                job = harness.Job(1, words, self.environment(**variables), self.folder)
                self.addCleanup(job.close)
                done = job.finish()
                self.assertEqual(done.code, code, done)
                if code == 2:
                    self.assertIn("hf download Qwen/Qwen3-8B", done.errors)

    def test_an_incomplete_download(self):
        weights = harness.make_model(self.folder / "incomplete", harness.qwen3_config())
        repository = self.snapshot("models", "someone/incomplete", sorted(weights.iterdir()))
        (repository / "refs" / "main").write_text("f" * 40)
        done = self.train(1, self.new_output(), expect=2, model_name="someone/incomplete", max_steps=1)
        self.assertEqual(len(done.sentences()), 1, done)
        self.assertIn("hf download someone/incomplete", done.sentences()[0])

    def test_random_weights_from_the_configuration_alone(self):
        folder = harness.make_model(self.folder / "dummy", harness.qwen3_config())
        (folder / "model.safetensors").unlink()
        one, other = self.new_output(), self.new_output()
        self.train(1, one, model_name=folder, load_format="dummy", max_steps=2, gradient_accumulation_steps=4)
        self.train(2, other, model_name=folder, load_format="dummy", max_steps=2, gradient_accumulation_steps=2)
        losses = harness.steps(one)["loss"]
        self.assertAlmostEqual(losses[0], harness.np.log(harness.VOCABULARY), delta=0.1)
        harness.np.testing.assert_allclose(harness.steps(other)["loss"], losses, atol=2e-5)


if __name__ == "__main__":
    unittest.main()
