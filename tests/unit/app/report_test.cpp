#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "app/report_command.hpp"
#include "app/report_summary.hpp"

namespace ranktune::app {
namespace {

// Two attempts: the first was killed after step 25, the second goes on from step 20. Rank 1 waits twice as
// long as rank 0.
store::RunRecord example() {
  store::RunRecord record;
  const store::Provenance first{
      {{"software", "ranktune"},
       {"software_version", "0.1.0"},
       {"git_revision", "abc"},
       {"recipe",
        R"({"model": "m", "dtype": "float32", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"],
            "global_batch_size": 8, "learning_rate": 0.001, "lr_scheduler_type": "linear", "warmup_steps": 5,
            "max_steps": 40})"},
       {"configuration",
        R"({"dataset": "rows.json", "max_seq_length": 512, "optim": "adamw", "max_steps": -1})"},
       {"hosts", "n1,n2"},
       {"devices", "NVIDIA X GPU-1,NVIDIA X GPU-2"},
       {"device_driver", "580.1"},
       {"communicator", "NCCL"}},
      {{"seed", 7},
       {"world_size", 2},
       {"per_device_train_batch_size", 2},
       {"gradient_accumulation_steps", 2},
       {"finished", 0}}};
  store::Provenance second = first;
  second.integers.back().second = 1;
  record.attempts = {first, second};
  for (std::int64_t step = 1; step <= 40; ++step) {
    const double loss = step == 30 ? 0.5 : 4.0 - 0.05 * static_cast<double>(step);
    record.steps.push_back(
        {step, 0.1 * static_cast<double>(step), 8, 1000, 500, loss, 1e-3, 1.0, 2.0, 0.02, 1.5, 0.4});
    record.ranks.push_back({step, 0, 500, 0.9, 0.1, 1 << 30});
    record.ranks.push_back({step, 1, 500, 0.8, 0.2, 2 << 29});
  }
  record.evaluations = {{20, 2.0, 7.389, 100, 1.5}, {40, 2.5, 12.18, 100, 1.5}};
  record.events = {{1.7e9, 0, "start", ""},
                   {1.7e9 + 50, 20, "checkpoint", "checkpoint-000020"},
                   {1.7e9 + 500, 20, "resume", "checkpoint-000020"},
                   {1.7e9 + 550, 40, "end", "done"}};
  return record;
}

std::string value(const store::RunRecord& record, const std::string& name) {
  const auto rows = run_summary(record);
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.first == name; });
  return found == rows.end() ? "" : found->second;
}

TEST(RunSummary, TellsWhatWasRecorded) {
  const store::RunRecord record = example();
  EXPECT_EQ(value(record, "status"), "finished, step 40 of 40");
  EXPECT_EQ(value(record, "model"), "m, float32");
  EXPECT_EQ(value(record, "LoRA"), "r 8, alpha 16, q_proj v_proj");
  EXPECT_EQ(value(record, "data"), "rows.json, at most 512 tokens a sample");
  EXPECT_EQ(value(record, "step"),
            "8 samples = 2 ranks x 2 x 2 accumulated; adamw, linear schedule, peak 0.001, 5 warm-up steps, "
            "seed 7");
  EXPECT_EQ(value(record, "machine"), "2 x NVIDIA X (driver 580.1), 2 ranks on n1 and n2, NCCL");
  EXPECT_EQ(value(record, "loss"),
            "3.9500 to 2.0000, mean of 4 steps 3.8750 to 2.0750, least 0.5000 in step 30");
  EXPECT_EQ(value(record, "evaluation"),
            "best 2.0000 (perplexity 7.389) after step 20, last 2.5000 after step 40, 2 in all");
  EXPECT_EQ(value(record, "tokens"), "40,000 (20,000 with a target) in 320 samples, 4 epochs");
  EXPECT_EQ(value(record, "speed"), "500 tok/s, 0.50 it/s; a step takes 2 s (median)");
  EXPECT_EQ(value(record, "time"),
            "1m20s in steps: 75.0 % computing, 20.0 % all-reduce and waiting for it, 1.0 % batches, 4.0 % "
            "else; 3.0s in evaluations");
  EXPECT_EQ(value(record, "waiting"), "rank 0 10.0 %, rank 1 20.0 %");
  EXPECT_EQ(value(record, "memory"), "1.00 GiB at most, on rank 0");
  EXPECT_EQ(value(record, "checkpoints"), "1, the last after step 20");
}

TEST(RunSummary, TellsOfInterruptions) {
  store::RunRecord record = example();
  const auto rows = run_summary(record);
  ASSERT_GE(rows.size(), 4U);
  const std::vector<std::pair<std::string, std::string>> history(rows.end() - 4, rows.end());
  EXPECT_EQ(history[0],
            std::pair(std::string("history"), std::string("2023-11-14 22:13:20 UTC  start after step 0")));
  EXPECT_EQ(history[1].second, "the attempt before ended without a record: killed, or failed");
  EXPECT_EQ(history[2].second, "2023-11-14 22:21:40 UTC  resume after step 20: checkpoint-000020");
  EXPECT_EQ(history[3].second, "2023-11-14 22:22:30 UTC  end after step 40: done");

  record.events.back() = {1.7e9 + 550, 33, "signal", "stopped by SIGTERM"};
  record.steps.resize(33);
  EXPECT_EQ(value(record, "status"), "stopped by SIGTERM, step 33 of 40");
  record.attempts.back().integers.back().second = 0;
  EXPECT_EQ(value(record, "status"), "step 33 of 40; no end is recorded: the run is going on, or was killed");
}

TEST(RunSummary, OfARunWithoutAStep) {
  store::RunRecord record;
  record.attempts.emplace_back();
  EXPECT_EQ(value(record, "loss"), "no step is recorded yet");
  EXPECT_EQ(value(record, "model"), "");
  EXPECT_TRUE(run_summary(store::RunRecord()).size() == 2U);
}

TEST(Report, WritesRowsInFullPrecision) {
  store::RunRecord record = example();
  record.steps.resize(1);
  record.steps[0].loss = 0.1 + 0.2;
  record.steps[0].grad_norm = std::numeric_limits<double>::infinity();
  const std::vector<NamedRun> runs{{"a,\"b\"", record}};
  EXPECT_EQ(steps_as_csv(runs),
            "run,step,epoch,samples,tokens,target_tokens,loss,learning_rate,grad_norm,step_seconds,"
            "data_seconds,compute_seconds,communication_seconds\n"
            "\"a,\"\"b\"\"\",1,0.1,8,1000,500,0.30000000000000004,0.001,inf,2,0.02,1.5,0.4\n");
  const auto json = nlohmann::json::parse(runs_as_json(runs)).at(0);
  EXPECT_EQ(json.at("run"), runs[0].name);
  EXPECT_EQ(json.at("steps").at(0).at("loss"), 0.1 + 0.2);
  EXPECT_TRUE(json.at("steps").at(0).at("grad_norm").is_null());
  EXPECT_EQ(json.at("ranks").size(), 80U);
  EXPECT_EQ(json.at("evaluations").at(1).at("step"), 40);
  EXPECT_EQ(json.at("events").at(2).at("kind"), "resume");
  EXPECT_EQ(json.at("attributes").at("finished"), 1);
}

TEST(Report, Flags) {
  const ReportCommand command = parse_report_options({"a", "--format=json", "b"});
  EXPECT_TRUE(command.problems.empty());
  EXPECT_EQ(command.runs, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(command.format, "json");
  EXPECT_TRUE(parse_report_options({"--help"}).help);
  EXPECT_TRUE(parse_report_options({"--help"}).problems.empty());
  EXPECT_EQ(parse_report_options({}).problems.size(), 1U);
  EXPECT_EQ(parse_report_options({"a", "--panels=loss"}).problems.size(), 1U);
  EXPECT_TRUE(parse_report_options({"a", "--panels=loss", "--plot", "a.svg"}).problems.empty());
  for (const char* wrong : {"--format=xml", "--formta=csv", "--form=csv"}) {
    const auto problems = parse_report_options({"a", wrong}).problems;
    ASSERT_EQ(problems.size(), 1U) << wrong;
    const std::string part = wrong == std::string("--format=xml") ? "'xml'" : std::string(wrong).substr(0, 6);
    EXPECT_NE(problems[0].find(part), std::string::npos) << problems[0];
  }
}

}  // namespace
}  // namespace ranktune::app
