#include "cluster/session.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cluster/mpi_call.hpp"
#include "cluster/signals.hpp"
#include "mpi_test.hpp"

namespace ranktune::cluster {
namespace {

using ranktune::testing::session;

std::string where(int rank) {
  return "rank " + std::to_string(rank) + " on " + session().hosts()[static_cast<std::size_t>(rank)] + ": ";
}

// What `work` throws through together, as "type|text".
std::string agreed(const std::function<void()>& work) {
  try {
    session().together("testing", work);
  } catch (const AgreedUserError& error) {
    return std::string("user|") + error.what();
  } catch (const AgreedError& error) {
    return std::string("failure|") + error.what();
  } catch (const StopRequested& stop) {
    return std::string("stop|") + describe(stop.reason);
  } catch (const AgreedFailure& failure) {
    return "quiet|" + std::to_string(failure.exit_code);
  }
  return "fine";
}

bool last() {
  return session().rank() == session().world_size() - 1;
}
int last_rank() {
  return session().world_size() - 1;
}

TEST(Session, KnowsItsPlace) {
  const auto& s = session();
  EXPECT_EQ(s.hosts().size(), static_cast<std::size_t>(s.world_size()));
  EXPECT_GE(s.thread_level(), MPI_THREAD_SERIALIZED);
  EXPECT_EQ(s.is_root(), s.rank() == 0);
  EXPECT_EQ(s.nodes(), 1);
  EXPECT_EQ(s.node(), 0);
  EXPECT_EQ(s.local_size(), s.world_size());
  EXPECT_EQ(s.local_rank(), s.rank());
  EXPECT_FALSE(s.hosts()[0].empty());
}

TEST(Session, SharesTheCpusOfItsMask) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  EXPECT_EQ(session().allowed_cpus(), std::max(1, CPU_COUNT(&set) / session().local_size()));
}

TEST(Session, SumAndMax) {
  const std::int64_t big = std::int64_t{1} << 40;
  const auto n = session().world_size();
  EXPECT_EQ(session().sum(big + session().rank()), n * big + n * (n - 1) / 2);
  EXPECT_EQ(session().max(-5 + session().rank()), -5 + n - 1);
}

TEST(Session, BroadcastsStringsOfAnyLength) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{100'000}}) {
    std::string text = last() ? std::string(size, 'x') : "something else";
    session().broadcast(text, last_rank());
    EXPECT_EQ(text, std::string(size, 'x'));
  }
}

TEST(Session, GathersStringsInRankOrder) {
  const auto rank = static_cast<std::size_t>(session().rank());
  const auto all = session().gather_all(std::string(rank * 7, static_cast<char>('a' + rank)));
  ASSERT_EQ(all.size(), static_cast<std::size_t>(session().world_size()));
  for (std::size_t r = 0; r < all.size(); ++r)
    EXPECT_EQ(all[r], std::string(r * 7, static_cast<char>('a' + r)));
}

// With small messages the ways for sizes above what one message holds are taken.
TEST(Session, SplitsLongMessages) {
  std::vector<int> numbers(1000);
  if (session().is_root()) std::iota(numbers.begin(), numbers.end(), 5);
  detail::broadcast_bytes(session().world(), numbers.data(), numbers.size() * sizeof(int), 0, 33);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(numbers[static_cast<std::size_t>(i)], i + 5);

  const auto rank = static_cast<std::size_t>(session().rank());
  const auto all =
      detail::gather_all(session().world(), std::string(50 + rank, static_cast<char>('a' + rank)), 16);
  for (std::size_t r = 0; r < all.size(); ++r)
    EXPECT_EQ(all[r], std::string(50 + r, static_cast<char>('a' + r)));
}

TEST(Session, MpiErrorsNameTheCall) {
  int value = 0;
  try {
    RT_MPI(MPI_Bcast(&value, 1, MPI_INT, -7, session().world()));
    ADD_FAILURE() << "no error";
  } catch (const Failure& failure) {
    EXPECT_EQ(std::string(failure.what()).rfind("MPI_Bcast failed: ", 0), 0U) << failure.what();
  }
}

TEST(Together, PassesWhenAllPass) {
  int ran = 0;
  EXPECT_EQ(agreed([&] { ++ran; }), "fine");
  EXPECT_EQ(ran, 1);
}

TEST(Together, OneRanksUserErrorIsEverybodys) {
  EXPECT_EQ(agreed([] {
              if (last()) throw UserError(std::vector<std::string>{"first sentence", "second sentence"});
            }),
            "user|first sentence\nsecond sentence");
}

TEST(Together, TheSameSentenceIsSaidOnce) {
  EXPECT_EQ(agreed([] { throw UserError("no such file"); }), "user|no such file");
}

TEST(Together, OtherSentencesNameTheirRank) {
  std::string expected = "user|bad on 0";
  for (int rank = 1; rank < session().world_size(); ++rank) {
    expected.append("\n").append(where(rank)).append("bad on ").append(std::to_string(rank));
  }
  EXPECT_EQ(agreed([] { throw UserError("bad on " + std::to_string(session().rank())); }), expected);
}

TEST(Together, LongListsEnd) {
  const auto text = agreed([] {
    std::vector<std::string> sentences;
    for (int i = 0; i < 30; ++i)
      sentences.push_back(std::to_string(session().rank()) + "/" + std::to_string(i));
    throw UserError(sentences);
  });
  EXPECT_NE(text.find("0/29"), std::string::npos) << "the first rank's own are all there";
  EXPECT_EQ(text.find("left out") != std::string::npos, session().world_size() > 1);
}

TEST(Together, FailuresNameRankHostAndPhase) {
  EXPECT_EQ(agreed([] {
              if (last()) throw std::runtime_error("disk on fire");
            }),
            "failure|" + where(last_rank()) + "testing: disk on fire");
  EXPECT_EQ(agreed([] { throw Failure("everywhere " + std::to_string(session().rank())); }),
            "failure|" + where(0) + "testing: everywhere 0");
  EXPECT_EQ(agreed([] { throw 7; }), "failure|" + where(0) + "testing: an exception of unknown type");
}

TEST(Together, UserErrorGoesBeforeFailureAndLosesNothing) {
  if (session().world_size() == 1) GTEST_SKIP() << "needs two ranks";
  EXPECT_EQ(agreed([] {
              if (session().is_root()) throw Failure("odd");
              if (last()) throw UserError("wrong");
            }),
            "user|wrong\n" + where(0) + "testing: odd");
}

TEST(Together, NestedKeepsTheText) {
  EXPECT_EQ(agreed([] {
              session().together("inner", [] {
                if (last()) throw Failure("deep");
              });
            }),
            "failure|" + where(last_rank()) + "inner: deep");
}

TEST(Together, StopOfOneRankStopsAll) {
  EXPECT_EQ(agreed([] {
              if (last()) throw StopRequested{StopReason::usr};
            }),
            "stop|SIGUSR2");
}

TEST(Together, TheStrongestReasonWins) {
  if (session().world_size() == 1) GTEST_SKIP() << "needs two ranks";
  EXPECT_EQ(agreed([] { throw StopRequested{last() ? StopReason::max_time : StopReason::term}; }),
            "stop|SIGTERM");
}

TEST(Together, FailureGoesBeforeStop) {
  if (session().world_size() == 1) GTEST_SKIP() << "needs two ranks";
  EXPECT_EQ(agreed([] {
              if (last()) throw Failure("broken");
              throw StopRequested{StopReason::usr};
            }),
            "failure|" + where(last_rank()) + "testing: broken");
}

TEST(Together, QuietFailureKeepsItsCode) {
  EXPECT_EQ(agreed([] { throw AgreedFailure{session().is_root() ? 2 : 1}; }), "quiet|2");
}

TEST(Together, TextThatIsNotUtf8Travels) {
  const auto text = agreed([] {
    if (last()) throw UserError("path \xff here");
  });
  EXPECT_EQ(text.rfind("user|path ", 0), 0U) << text;
}

}  // namespace
}  // namespace ranktune::cluster
