package seccomp

const (
	nativeArch = 0xc000003e
	thirdSet   = 0x40000000 // x32
)

// socketcall, socket and io_uring_setup of i386.
var otherArchSockets = []uint32{102, 359, 425}

// The calls that an engine refuses in a container. Calls since Linux 5.1 have one number
// everywhere.
var nativeCalls = callNumbers{
	refused: append([]uint32{
		103,      // syslog
		165, 166, // mount, umount2
		155,      // pivot_root
		170, 171, // sethostname, setdomainname
		179, 212, // quotactl, lookup_dcookie
		272, 308, // unshare, setns
		298, 300, 321, 323, // perf_event_open, fanotify_init, bpf, userfaultfd
		303, 304, // name_to_handle_at, open_by_handle_at
		248, 249, 250, // add_key, request_key, keyctl
		174, 175, 176, 177, 178, 313, // modules of the kernel
		246, 320, // kexec
		163, 167, 168, 169, // acct, swapon, swapoff, reboot
		172, 173, 153, // iopl, ioperm, vhangup
		164, 227, // settimeofday, clock_settime
	}, newCalls...),
	clone: 56, ioctl: 16, socket: 41,
	onProcess: []uint32{302, 142, 144, 203, 314}, setpriority: 141, ioprioSet: 251,
	chown: []uint32{92, 93, 94, 260},
}

// otherCalls are the calls of i386.
var otherCalls = callNumbers{
	refused: append([]uint32{
		103, 21, 22, 52, 217, 74, 121, 131, 253, 310, 346, 336, 338, 357, 374, 341, 342, 286, 287, 288, 127, 128, 129,
		130, 167, 350, 283, 51, 87, 115, 88, 110, 101, 111, 79, 25, 264, 404,
	}, newCalls...),
	clone: 120, ioctl: 54, socket: 359,
	onProcess: []uint32{340, 154, 156, 241, 351}, setpriority: 97, ioprioSet: 289,
	chown: []uint32{182, 95, 16, 212, 207, 198, 298},
}
