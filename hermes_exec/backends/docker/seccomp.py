"""The seccomp profile of containers whose slots have roots of their own."""

from __future__ import annotations

import json

ALLOWED = """
accept accept4 access adjtimex alarm arch_prctl arm_fadvise64_64 arm_sync_file_range bind breakpoint brk cacheflush
capget capset chdir chmod chown chown32 chroot clock_adjtime clock_adjtime64 clock_getres clock_getres_time64
clock_gettime clock_gettime64 clock_nanosleep clock_nanosleep_time64 close close_range connect copy_file_range creat
dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old
eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_mark
fchdir fchmod fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fork
fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futex futex_requeue
futex_time64 futex_wait futex_waitv futex_wake futimesat get_robust_list get_thread_area getcpu getcwd getdents
getdents64 getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getitimer getpeername getpgid
getpgrp getpid getppid getpriority getrandom getresgid getresgid32 getresuid getresuid32 getrlimit getrusage getsid
getsockname getsockopt gettid gettimeofday getuid getuid32 getxattr getxattrat inotify_add_watch inotify_init
inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup
io_submit ioctl ioprio_get ioprio_set ipc kill landlock_add_rule landlock_create_ruleset landlock_restrict_self
lchown lchown32 lgetxattr link linkat listen listxattr listxattrat llistxattr _llseek lremovexattr lseek lsetxattr
lstat lstat64 madvise map_shadow_stack membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat
mlock mlock2 mlockall mmap mmap2 modify_ldt mprotect mq_getsetattr mq_notify mq_open mq_timedreceive
mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync
munlock munlockall munmap nanosleep newfstatat _newselect open openat openat2 pause pidfd_open pidfd_send_signal
pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll ppoll_time64 prctl pread64 preadv preadv2 prlimit64
process_mrelease process_vm_readv process_vm_writev pselect6 pselect6_time64 ptrace pwrite64 pwritev pwritev2 read
readahead readlink readlinkat readv recv recvfrom recvmmsg recvmmsg_time64 recvmsg remap_file_pages removexattr
removexattrat rename renameat renameat2 restart_syscall riscv_flush_icache rmdir rseq rt_sigaction rt_sigpending
rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo
sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam sched_setscheduler
sched_yield seccomp select semctl semget semop semtimedop semtimedop_time64 send sendfile sendfile64 sendmmsg
sendmsg sendto set_robust_list set_thread_area set_tid_address set_tls setfsgid setfsgid32 setfsuid setfsuid32
setgid setgid32 setgroups setgroups32 setitimer setpgid setpriority setregid setregid32 setresgid setresgid32
setresuid setresuid32 setreuid setreuid32 setrlimit setsid setsockopt setuid setuid32 setxattr setxattrat shmat
shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 sigprocmask sigreturn socketcall socketpair splice stat
stat64 statfs statfs64 statx symlink symlinkat sync sync_file_range sync_file_range2 syncfs sysinfo tee tgkill time
timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64
timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate truncate64
ugetrlimit umask uname unlink unlinkat uretprobe utime utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid
waitpid write writev
"""
"""The system calls that Docker allows in a container with its default capabilities (moby, profiles/seccomp); those that
the engine's version does not know it passes over."""
FOR_SLOTS = "clone clone3 mount mount_setattr pivot_root sethostname setns umount umount2 unshare"
"""What the runner needs besides them to give slots roots of their own. Commands of slots may not call these: each slot
has a filter of its own."""
AF_VSOCK = 40
PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
ARCHITECTURES = {"X86_64": ("X86", "X32"), "AARCH64": ("ARM",), "RISCV64": ()}


def profile() -> str:
    """The profile as JSON, in the form of Docker's option ``seccomp=``."""
    allow = [_rule(ALLOWED.split() + FOR_SLOTS.split()), _rule(["socket"], AF_VSOCK, "NE")]
    allow += [_rule(["personality"], value, "EQ") for value in PERSONALITIES]
    architectures = [
        {"architecture": f"SCMP_ARCH_{native}", "subArchitectures": [f"SCMP_ARCH_{other}" for other in others]}
        for native, others in ARCHITECTURES.items()
    ]
    return json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "archMap": architectures, "syscalls": allow})


def _rule(names: list[str], value: int | None = None, comparison: str = "") -> dict[str, object]:
    arguments = [] if value is None else [{"index": 0, "value": value, "op": f"SCMP_CMP_{comparison}"}]
    return {"names": names, "action": "SCMP_ACT_ALLOW", "args": arguments}
