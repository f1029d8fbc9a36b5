#include "app/report_summary.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "app/console_format.hpp"

namespace ranktune::app {
namespace {

using store::EventRow;
using store::RunRecord;
using store::StepRow;
using Json = nlohmann::json;

std::string text_of(const store::Provenance& provenance, std::string_view name) {
  for (const auto& [key, value] : provenance.text) {
    if (key == name) return value;
  }
  return {};
}

std::int64_t integer_of(const store::Provenance& provenance, std::string_view name) {
  for (const auto& [key, value] : provenance.integers) {
    if (key == name) return value;
  }
  return 0;
}

Json json_of(const store::Provenance& provenance, std::string_view name) {
  const Json value = Json::parse(text_of(provenance, name), nullptr, false);
  return value.is_object() ? value : Json::object();
}

// A text as it is, a number in few digits; empty where there is none.
std::string shown(const Json& object, const char* name) {
  const Json value = object.value(name, Json());
  if (value.is_null()) return {};
  if (value.is_string()) return value.get<std::string>();
  return value.is_number_float() ? fmt::format("{:g}", value.get<double>()) : value.dump();
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    if (end > start) parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

// "8 x NVIDIA H200", or the name alone where there is one.
std::string counted(const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, int>> counts;
  for (const std::string& name : names) {
    const auto known =
        std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.first == name; });
    if (known == counts.end()) {
      counts.emplace_back(name, 1);
    } else {
      ++known->second;
    }
  }
  if (counts.size() == 1 && counts.front().second == 1) return counts.front().first;
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts) parts.push_back(fmt::format("{} x {}", count, name));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string utc(double seconds) {
  const auto whole = static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  std::string text(32, '\0');
  text.resize(std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts));
  return text;
}

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "0 %";
}

double sum_of(const std::vector<StepRow>& steps, double StepRow::*field) {
  double sum = 0;
  for (const StepRow& row : steps) sum += row.*field;
  return sum;
}

std::int64_t sum_of(const std::vector<StepRow>& steps, std::int64_t StepRow::*field) {
  std::int64_t sum = 0;
  for (const StepRow& row : steps) sum += row.*field;
  return sum;
}

// Mean over the target tokens of `count` steps from `first` on.
double mean_loss(const std::vector<StepRow>& steps, std::size_t first, std::size_t count) {
  double loss = 0;
  double targets = 0;
  for (std::size_t i = first; i < first + count; ++i) {
    loss += steps[i].loss * static_cast<double>(steps[i].target_tokens);
    targets += static_cast<double>(steps[i].target_tokens);
  }
  return targets > 0 ? loss / targets : std::nan("");
}

std::int64_t last_step(const RunRecord& record) {
  return record.steps.empty() ? 0 : record.steps.back().step;
}

// Fills the table row by row; empty values are left out.
class Summary {
 public:
  explicit Summary(const RunRecord& record) : record_(record) {
    if (record.attempts.empty()) return;
    attempt_ = record.attempts.back();
    recipe_ = json_of(attempt_, "recipe");
    configuration_ = json_of(attempt_, "configuration");
  }

  std::vector<std::pair<std::string, std::string>> rows() {
    add("status", status());
    add("model", model());
    add("LoRA", lora());
    add("data", data());
    add("step", step());
    add("machine", machine());
    add("software", software());
    add("loss", loss());
    add("evaluation", evaluation());
    add("tokens", tokens());
    add("speed", speed());
    add("time", time());
    add("waiting", waiting());
    add("memory", memory());
    add("checkpoints", checkpoints());
    history();
    return std::move(rows_);
  }

 private:
  void add(const char* name, const std::string& value) {
    if (!value.empty()) rows_.emplace_back(name, value);
  }
  std::string status() const;
  std::string model() const;
  std::string lora() const;
  std::string data() const;
  std::string step() const;
  std::string machine() const;
  std::string software() const;
  std::string loss() const;
  std::string evaluation() const;
  std::string tokens() const;
  std::string speed() const;
  std::string time() const;
  std::string waiting() const;
  std::string memory() const;
  std::string checkpoints() const;
  void history();

  const RunRecord& record_;
  store::Provenance attempt_;  // the last one
  Json recipe_ = Json::object();
  Json configuration_ = Json::object();
  std::vector<std::pair<std::string, std::string>> rows_;
};

std::string Summary::status() const {
  std::int64_t total = recipe_.value("max_steps", configuration_.value("max_steps", std::int64_t{0}));
  std::string done = total > 0 ? fmt::format("step {} of {}", last_step(record_), total)
                               : fmt::format("step {}", last_step(record_));
  if (integer_of(attempt_, "finished") == 0)
    return fmt::format("{}; no end is recorded: the run is going on, or was killed", done);
  for (auto event = record_.events.rbegin(); event != record_.events.rend(); ++event) {
    if (event->kind == "end") return fmt::format("finished, {}", done);
    if (event->kind == "signal") return fmt::format("{}, {}", event->message, done);
  }
  return done;
}

std::string Summary::model() const {
  std::string text = shown(recipe_, "model");
  if (text.empty()) return text;
  text += ", " + shown(recipe_, "dtype");
  if (configuration_.value("load_in_4bit", false)) text += ", base weights in 4 bits";
  if (shown(recipe_, "load_format") == "dummy") text += ", random weights";
  return text;
}

std::string Summary::lora() const {
  if (!recipe_.contains("r")) return {};
  std::vector<std::string> modules;
  for (const Json& module : recipe_.value("target_modules", Json::array())) modules.push_back(module);
  std::string text =
      fmt::format("r {}, alpha {}, {}", shown(recipe_, "r"), shown(recipe_, "lora_alpha"),
                  modules.size() == 7 ? "all projections" : fmt::format("{}", fmt::join(modules, " ")));
  if (recipe_.value("lora_dropout", 0.0) > 0) text += ", dropout " + shown(recipe_, "lora_dropout");
  if (recipe_.value("use_rslora", false)) text += ", rank-stabilised";
  return text;
}

std::string Summary::data() const {
  std::string text = shown(configuration_, "dataset");
  if (text.empty()) return text;
  text += fmt::format(", at most {} tokens a sample", shown(configuration_, "max_seq_length"));
  if (configuration_.value("packing", false)) text += ", packed";
  return text;
}

std::string Summary::step() const {
  const std::string samples = shown(recipe_, "global_batch_size");
  if (samples.empty()) return {};
  return fmt::format(
      "{} {} = {} rank{} x {} x {} accumulated; {}, {} schedule, peak {}, {} warm-up steps, seed {}", samples,
      configuration_.value("packing", false) ? "packs" : "samples", integer_of(attempt_, "world_size"),
      integer_of(attempt_, "world_size") == 1 ? "" : "s", integer_of(attempt_, "per_device_train_batch_size"),
      integer_of(attempt_, "gradient_accumulation_steps"), shown(configuration_, "optim"),
      shown(recipe_, "lr_scheduler_type"), shown(recipe_, "learning_rate"), shown(recipe_, "warmup_steps"),
      integer_of(attempt_, "seed"));
}

std::string Summary::machine() const {
  std::vector<std::string> devices;
  for (std::string name : split(text_of(attempt_, "devices"))) {
    // The GPU's own number tells no more about the kind of machine.
    if (const std::size_t uuid = name.find(" GPU-"); uuid != std::string::npos) name.resize(uuid);
    devices.push_back(name);
  }
  std::string text = counted(devices);
  if (const std::string driver = text_of(attempt_, "device_driver"); !driver.empty())
    text += fmt::format(" (driver {})", driver);
  if (const auto hosts = split(text_of(attempt_, "hosts")); !hosts.empty()) {
    const std::set<std::string> nodes(hosts.begin(), hosts.end());
    text +=
        fmt::format("{}{} rank{} on {}", text.empty() ? "" : ", ", hosts.size(), hosts.size() == 1 ? "" : "s",
                    nodes.size() <= 4 ? fmt::format("{}", fmt::join(nodes, " and "))
                                      : fmt::format("{} nodes", nodes.size()));
  }
  if (const std::string by = text_of(attempt_, "communicator"); !by.empty()) text += ", " + by;
  std::set<std::int64_t> sizes;
  for (const auto& attempt : record_.attempts) sizes.insert(integer_of(attempt, "world_size"));
  if (sizes.size() > 1) text += fmt::format("; attempts on {} ranks", fmt::join(sizes, " and on "));
  return text;
}

std::string Summary::software() const {
  const std::string version = text_of(attempt_, "software_version");
  if (version.empty()) return {};
  std::string text =
      fmt::format("{} {} ({})", text_of(attempt_, "software"), version, text_of(attempt_, "git_revision"));
  for (const auto& [name, label] :
       {std::pair{"libtorch_version", "LibTorch"}, std::pair{"cuda_runtime_version", "CUDA"},
        std::pair{"mpi_version", ""}, std::pair{"hdf5_version", "HDF5"}}) {
    const std::string value = text_of(attempt_, name);
    if (!value.empty()) text += fmt::format(", {}{}{}", label, *label == '\0' ? "" : " ", value);
  }
  return text;
}

std::string Summary::loss() const {
  const auto& steps = record_.steps;
  if (steps.empty()) return "no step is recorded yet";
  std::string text = fmt::format("{:.4f} to {:.4f}", steps.front().loss, steps.back().loss);
  // A tenth of the run at each end.
  const std::size_t window = std::min<std::size_t>(100, steps.size() / 10);
  if (window > 1) {
    text += fmt::format(", mean of {} steps {:.4f} to {:.4f}", window, mean_loss(steps, 0, window),
                        mean_loss(steps, steps.size() - window, window));
  }
  const auto least = std::min_element(steps.begin(), steps.end(),
                                      [](const StepRow& a, const StepRow& b) { return a.loss < b.loss; });
  return text + fmt::format(", least {:.4f} in step {}", least->loss, least->step);
}

std::string Summary::evaluation() const {
  const auto& found = record_.evaluations;
  if (found.empty()) return {};
  const auto best = std::min_element(found.begin(), found.end(),
                                     [](const auto& a, const auto& b) { return a.loss < b.loss; });
  std::string text =
      fmt::format("best {:.4f} (perplexity {:.4g}) after step {}", best->loss, best->perplexity, best->step);
  if (found.size() > 1)
    text += fmt::format(", last {:.4f} after step {}, {} in all", found.back().loss, found.back().step,
                        found.size());
  return text;
}

std::string Summary::tokens() const {
  const auto& steps = record_.steps;
  if (steps.empty()) return {};
  return fmt::format("{} ({} with a target) in {} samples, {:.3g} epochs",
                     grouped(static_cast<std::uint64_t>(sum_of(steps, &StepRow::tokens))),
                     grouped(static_cast<std::uint64_t>(sum_of(steps, &StepRow::target_tokens))),
                     grouped(static_cast<std::uint64_t>(sum_of(steps, &StepRow::samples))),
                     steps.back().epoch);
}

std::string Summary::speed() const {
  const auto& steps = record_.steps;
  const double seconds = sum_of(steps, &StepRow::step_seconds);
  if (seconds <= 0) return {};
  std::vector<double> each;
  for (const StepRow& row : steps) each.push_back(row.step_seconds);
  const auto middle = each.begin() + static_cast<std::ptrdiff_t>(each.size() / 2);
  std::nth_element(each.begin(), middle, each.end());
  return fmt::format("{} tok/s, {}; a step takes {:.3g} s (median)",
                     human_count(static_cast<double>(sum_of(steps, &StepRow::tokens)) / seconds),
                     human_rate(static_cast<double>(steps.size()) / seconds, "it"), *middle);
}

std::string Summary::time() const {
  const auto& steps = record_.steps;
  if (steps.empty()) return {};
  const double all = sum_of(steps, &StepRow::step_seconds);
  const double data = sum_of(steps, &StepRow::data_seconds);
  const double compute = sum_of(steps, &StepRow::compute_seconds);
  const double communication = sum_of(steps, &StepRow::communication_seconds);
  std::string text =
      fmt::format("{} in steps: {} computing, {} all-reduce and waiting for it, {} batches, {} else",
                  human_duration(all), percent(compute, all), percent(communication, all), percent(data, all),
                  percent(std::max(0.0, all - data - compute - communication), all));
  double evaluating = 0;
  for (const auto& row : record_.evaluations) evaluating += row.seconds;
  if (evaluating > 0) text += fmt::format("; {} in evaluations", human_duration(evaluating));
  return text;
}

std::string Summary::waiting() const {
  std::map<std::int64_t, std::pair<double, double>> ranks;  // waiting, all
  for (const auto& row : record_.ranks) {
    ranks[row.rank].first += row.waiting_seconds;
    ranks[row.rank].second += row.waiting_seconds + row.compute_seconds;
  }
  if (ranks.size() < 2) return {};
  using Share = std::pair<double, std::int64_t>;
  std::vector<Share> shares;
  for (const auto& [rank, seconds] : ranks)
    shares.emplace_back(seconds.second > 0 ? seconds.first / seconds.second : 0, rank);
  const auto one = [](const Share& share) {
    return fmt::format("rank {} {}", share.second, percent(share.first, 1));
  };
  constexpr std::size_t kAllShown = 8;
  if (shares.size() <= kAllShown) {
    std::vector<std::string> parts;
    for (const Share& share : shares) parts.push_back(one(share));
    return fmt::format("{}", fmt::join(parts, ", "));
  }
  std::sort(shares.begin(), shares.end());
  return fmt::format("least {}, median {}, most {}", one(shares.front()),
                     percent(shares[shares.size() / 2].first, 1), one(shares.back()));
}

std::string Summary::memory() const {
  const auto& ranks = record_.ranks;
  if (ranks.empty()) return {};
  const auto fullest = std::max_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
    return a.memory_bytes < b.memory_bytes;
  });
  if (fullest->memory_bytes <= 0) return {};
  return fmt::format("{} at most, on rank {}", human_bytes(static_cast<double>(fullest->memory_bytes)),
                     fullest->rank);
}

std::string Summary::checkpoints() const {
  std::int64_t count = 0;
  std::int64_t last = 0;
  for (const EventRow& event : record_.events) {
    if (event.kind != "checkpoint") continue;
    ++count;
    last = event.step;
  }
  return count == 0 ? "" : fmt::format("{}, the last after step {}", count, last);
}

// Starts, ends, interruptions and warnings in the order of time.
void Summary::history() {
  constexpr std::size_t kMostLines = 20;
  std::vector<std::string> lines;
  bool open = false;  // an attempt that has not recorded its end
  for (const EventRow& event : record_.events) {
    if (event.kind == "checkpoint") continue;
    const bool begins = event.kind == "start" || event.kind == "resume";
    if (begins && open) lines.emplace_back("the attempt before ended without a record: killed, or failed");
    if (begins) open = true;
    if (event.kind == "end" || event.kind == "signal") open = false;
    lines.push_back(fmt::format("{}  {} after step {}{}{}", utc(event.time), event.kind, event.step,
                                event.message.empty() ? "" : ": ", event.message));
  }
  if (lines.size() > kMostLines) {
    const auto dropped = lines.size() - kMostLines + 1;
    lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(dropped));
    lines.insert(lines.begin(), fmt::format("{} earlier ones are left out", dropped));
  }
  for (std::size_t i = 0; i < lines.size(); ++i) rows_.emplace_back(i == 0 ? "history" : "", lines[i]);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> run_summary(const RunRecord& record) {
  return Summary(record).rows();
}

}  // namespace ranktune::app
