// Loaded in front of the C library (LD_PRELOAD) by tests of checkpoints: counts what a rank asks of the disk below a folder
// named checkpoints, and at call number DISK_CALL of rank DISK_RANK does what DISK_DOES says:
//   kill         the rank ends by SIGKILL, before the call
//   kill-mpirun  its parent does, and it waits to follow
//   stop, late   the rank ends no more, by SIGSTOP, or waits for a minute
//   full, once   this call and all behind it fail, ENOSPC, or this call alone
//   slow         needs no number: each rank writes DISK_RATE bytes a second, at most
//   asked        needs no number either: what the file DISK_ASK says now. "full": every call fails, ENOSPC; "lie": a rename
//                is not made, though it seems to be; "unreadable": no file of a checkpoint can be opened, EIO
// The call is written to DISK_LOG first. With DISK_DOES=count each call is.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int calls;

static int real_open(const char* path, int flags) { return (int)openat(AT_FDCWD, path, flags | O_CREAT, 0666); }

static void note(const char* name, const char* path) {
  char line[PATH_MAX + 64];
  const char* file = getenv("DISK_LOG");
  const char* inside = strstr(path, "/checkpoints");
  const int length = snprintf(line, sizeof line, "%s %d %s %s\n", getenv("OMPI_COMM_WORLD_RANK") ? getenv("OMPI_COMM_WORLD_RANK") : "0",
                              calls, name, inside);
  const int log = file ? real_open(file, O_WRONLY | O_APPEND) : -1;
  if (log < 0) return;
  ssize_t (*real_write)(int, const void*, size_t) = dlsym(RTLD_NEXT, "write");
  if (real_write(log, line, (size_t)length) < 0) abort();
  close(log);
}

// Whether the file DISK_ASK says this word.
static int asked(const char* path, const char* word) {
  const char *does = getenv("DISK_DOES"), *ask = getenv("DISK_ASK");
  if (!does || !ask || strcmp(does, "asked") || !strstr(path, "/checkpoints")) return 0;
  char text[16] = "";
  const int file = (int)openat(AT_FDCWD, ask, O_RDONLY);
  if (file < 0) return 0;
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  return length > 0 && !strncmp(text, word, strlen(word));
}

// Whether the call is to fail.
static int at(const char* name, const char* path) {
  const char *does = getenv("DISK_DOES"), *call = getenv("DISK_CALL"), *rank = getenv("DISK_RANK");
  const char* own_rank = getenv("OMPI_COMM_WORLD_RANK") ? getenv("OMPI_COMM_WORLD_RANK") : "0";
  if (!does || !strstr(path, "/checkpoints")) return 0;
  if (asked(path, "full")) return errno = ENOSPC, 1;
  const int number = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
  if (!strcmp(does, "count")) note(name, path);
  if (!call || !rank || strcmp(rank, own_rank)) return 0;
  if (!strcmp(does, "full") && number >= atoi(call)) return errno = ENOSPC, 1;
  if (number != atoi(call)) return 0;
  if (!strcmp(does, "once")) return errno = ENOSPC, 1;
  if (!strncmp(does, "kill", 4)) note(name, path);
  if (!strcmp(does, "kill")) kill(getpid(), SIGKILL);
  if (!strcmp(does, "stop")) kill(getpid(), SIGSTOP);
  if (!strcmp(does, "late")) sleep(60);
  if (!strcmp(does, "kill-mpirun")) kill(getppid(), SIGKILL), sleep(20);
  return 0;
}

static int at_file(const char* name, int file, size_t bytes) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  const char *does = getenv("DISK_DOES"), *rate = getenv("DISK_RATE");
  if (does && rate && !strcmp(does, "slow") && strstr(path, "/checkpoints")) usleep((useconds_t)(bytes * 1e6 / atof(rate)));
  return at(name, path);
}

#define REAL(type, name, ...) type (*real)(__VA_ARGS__) = dlsym(RTLD_NEXT, #name)

ssize_t write(int file, const void* data, size_t bytes) {
  REAL(ssize_t, write, int, const void*, size_t);
  return at_file("write", file, bytes) ? -1 : real(file, data, bytes);
}
int fsync(int file) {
  REAL(int, fsync, int);
  return at_file("sync", file, 0) ? -1 : real(file);
}
int mkdir(const char* path, mode_t mode) {
  REAL(int, mkdir, const char*, mode_t);
  return at("mkdir", path) ? -1 : real(path, mode);
}
int rename(const char* from, const char* to) {
  REAL(int, rename, const char*, const char*);
  if (asked(from, "lie")) return 0;
  return at("rename", from) ? -1 : real(from, to);
}
FILE* fopen(const char* path, const char* mode) {
  REAL(FILE*, fopen, const char*, const char*);
  if (asked(path, "unreadable") && strstr(path, "/step-")) return errno = EIO, NULL;
  return real(path, mode);
}
int remove(const char* path) {
  REAL(int, remove, const char*);
  return at("remove", path) ? -1 : real(path);
}
