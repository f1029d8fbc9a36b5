// A disk that is soon full.
#pragma once

#include <sys/mount.h>

#include "temporary_folder.hpp"

namespace ranktune::testing {

// A file system of 4 MiB, where this user may mount one.
class SmallDisk {
 public:
  SmallDisk() : mounted_(::mount("none", folder_.path().c_str(), "tmpfs", 0, "size=4m") == 0) {}
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  bool mounted_;
};

}  // namespace ranktune::testing
