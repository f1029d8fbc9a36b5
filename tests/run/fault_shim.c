// LD_PRELOAD shim: one write, fsync, rename or the like below a folder fails, as on a full or broken disk.
//
//   FAULT_BELOW  folder, absolute
//   FAULT_LOG    file that gets a line "FUNCTION PATH" for each of these calls
//   FAULT_AT     number of the call that fails, from 1 on; FAULT_STAYS=1: and all after it
//   FAULT_ERRNO  with what
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long calls;

static void* next(const char* name) {
  return dlsym(RTLD_NEXT, name);
}

// Whether this call is the one that fails. Logs it with the real write.
static int path_fails(const char* function, const char* path) {
  const char* below = getenv("FAULT_BELOW");
  const size_t length = below == NULL ? 0 : strlen(below);
  if (length == 0 || strncmp(path, below, length) != 0) return 0;
  if (path[length] != '/' && path[length] != '\0') return 0;
  const long number = atomic_fetch_add(&calls, 1) + 1;
  const char* log = getenv("FAULT_LOG");
  if (log != NULL) {
    char line[4608];
    const int size = snprintf(line, sizeof line, "%s %s\n", function, path);
    const int file = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    ssize_t (*real)(int, const void*, size_t) = next("write");
    if (file < 0 || real(file, line, (size_t)size) != size) abort();
    close(file);
  }
  const char* at = getenv("FAULT_AT");
  const char* number_of_error = getenv("FAULT_ERRNO");
  if (at == NULL || number_of_error == NULL || number < atol(at)) return 0;
  if (number > atol(at) && getenv("FAULT_STAYS") == NULL) return 0;
  errno = atoi(number_of_error);
  return 1;
}

static int descriptor_fails(const char* function, int descriptor) {
  char link[64];
  char path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const int saved = errno;
  const ssize_t size = readlink(link, path, sizeof path - 1);
  errno = saved;
  if (size <= 0) return 0;
  path[size] = '\0';
  return path_fails(function, path);
}

#define ON_DESCRIPTOR(result, name, descriptor, parameters, arguments) \
  result name parameters {                                             \
    static result(*real) parameters;                                   \
    if (real == NULL) real = (result(*) parameters)next(#name);        \
    if (descriptor_fails(#name, descriptor)) return -1;                \
    return real arguments;                                             \
  }

ON_DESCRIPTOR(ssize_t, write, file, (int file, const void* data, size_t size), (file, data, size))
ON_DESCRIPTOR(ssize_t, writev, file, (int file, const struct iovec* parts, int count), (file, parts, count))
ON_DESCRIPTOR(ssize_t, pwrite, file, (int file, const void* data, size_t size, off_t at), (file, data, size, at))
ON_DESCRIPTOR(ssize_t, pwrite64, file, (int file, const void* data, size_t size, off64_t at),
              (file, data, size, at))
ON_DESCRIPTOR(ssize_t, sendfile, file, (int file, int from, off_t* at, size_t size), (file, from, at, size))
ON_DESCRIPTOR(ssize_t, copy_file_range, file,
              (int from, off64_t* from_at, int file, off64_t* at, size_t size, unsigned flags),
              (from, from_at, file, at, size, flags))
ON_DESCRIPTOR(int, ftruncate, file, (int file, off_t size), (file, size))
ON_DESCRIPTOR(int, ftruncate64, file, (int file, off64_t size), (file, size))
ON_DESCRIPTOR(int, fsync, file, (int file), (file))
ON_DESCRIPTOR(int, fdatasync, file, (int file), (file))

int rename(const char* from, const char* to) {
  static int (*real)(const char*, const char*);
  if (real == NULL) real = (int (*)(const char*, const char*))next("rename");
  if (path_fails("rename", from)) return -1;
  return real(from, to);
}

int mkdir(const char* path, mode_t mode) {
  static int (*real)(const char*, mode_t);
  if (real == NULL) real = (int (*)(const char*, mode_t))next("mkdir");
  if (path_fails("mkdir", path)) return -1;
  return real(path, mode);
}
