#include "base/child_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <system_error>

#include "base/error.hpp"

namespace ranktune {
namespace {

constexpr int kWakeMilliseconds = 200;

[[noreturn]] void fail(const char* call) {
  throw Failure(fmt::format("{} failed: {}", call, std::generic_category().message(errno)));
}

// One of our ends and one of the child's. Sockets, since writing to one whose reader is gone need not raise a
// signal.
class Channel {
 public:
  Channel() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) fail("socketpair");
    ours_ = ends[0];
    theirs_ = ends[1];
  }
  ~Channel() {
    close_ours();
    close_theirs();
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  int ours() const { return ours_; }  // -1 when closed, as poll wants it
  int theirs() const { return theirs_; }
  void close_ours() { close(ours_); }
  void close_theirs() { close(theirs_); }

 private:
  static void close(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
  int ours_ = -1, theirs_ = -1;
};

class Child {
 public:
  explicit Child(const std::vector<std::string>& command) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&actions, in.theirs(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out.theirs(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err.theirs(), STDERR_FILENO);
    // Ours are blocked in all threads.
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    const int code = ::posix_spawnp(&pid_, words.front(), &actions, &attributes, words.data(), ::environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (code != 0) {
      pid_ = -1;
      throw UserError(
          fmt::format("cannot run '{}': {}", command.front(), std::generic_category().message(code)));
    }
    for (Channel* channel : {&in, &out, &err}) channel->close_theirs();
  }
  ~Child() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Its exit code.
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0) {
      if (errno != EINTR) fail("waitpid");
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  Channel in, out, err;

 private:
  pid_t pid_ = -1;
};

// Takes what was sent from `text`; all of it where nobody reads any more.
void feed(Channel& channel, std::string& text) {
  const ssize_t sent = ::send(channel.ours(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) {
    text.erase(0, static_cast<std::size_t>(sent));
  } else if (errno == EPIPE || errno == ECONNRESET) {
    text.clear();
    channel.close_ours();
  } else if (errno != EINTR && errno != EAGAIN) {
    fail("send");
  }
}

// What has come; closes our end where there is no more.
std::string_view receive(Channel& channel, std::vector<char>& buffer) {
  const ssize_t count = ::recv(channel.ours(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (count > 0) return {buffer.data(), static_cast<std::size_t>(count)};
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return {};
  if (count < 0 && errno != ECONNRESET) fail("recv");
  channel.close_ours();
  return {};
}

}  // namespace

ChildResult run_child(const std::vector<std::string>& command, const ChildTalk& talk) {
  Child child(command);
  ChildResult result;
  std::vector<char> buffer(std::size_t{1} << 18);
  std::string pending;
  while (child.out.ours() >= 0 || child.err.ours() >= 0) {
    if (child.in.ours() >= 0 && pending.empty()) {
      pending = talk.input();
      if (pending.empty()) child.in.close_ours();
    }
    std::array<pollfd, 3> ends{pollfd{child.in.ours(), POLLOUT, 0}, pollfd{child.out.ours(), POLLIN, 0},
                               pollfd{child.err.ours(), POLLIN, 0}};
    if (::poll(ends.data(), ends.size(), kWakeMilliseconds) < 0 && errno != EINTR) fail("poll");
    if (ends[0].revents != 0) feed(child.in, pending);
    talk.output(ends[1].revents != 0 ? receive(child.out, buffer) : std::string_view());
    if (ends[2].revents != 0) result.errors += receive(child.err, buffer);
  }
  result.exit_code = child.wait();
  return result;
}

std::string python_program() {
  const char* named = std::getenv("RANKTUNE_PYTHON");  // NOLINT(concurrency-mt-unsafe): nobody writes it
  return named == nullptr || *named == '\0' ? "python3" : named;
}

}  // namespace ranktune
