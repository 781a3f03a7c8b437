package seccomp

const (
	nativeArch = 0xc00000b7
	thirdSet   = 0
)

// socket and io_uring_setup of 32-bit arm.
var otherArchSockets = []uint32{281, 425}

// The calls that an engine refuses in a container. Calls since Linux 5.1 have one number
// everywhere.
var nativeCalls = callNumbers{
	refused: append([]uint32{
		116,    // syslog
		40, 39, // mount, umount2
		41,       // pivot_root
		161, 162, // sethostname, setdomainname
		60, 18, // quotactl, lookup_dcookie
		97, 268, // unshare, setns
		241, 262, 280, 282, // perf_event_open, fanotify_init, bpf, userfaultfd
		264, 265, // name_to_handle_at, open_by_handle_at
		217, 218, 219, // add_key, request_key, keyctl
		105, 106, 273, // modules of the kernel
		104, 294, // kexec
		89, 224, 225, 142, // acct, swapon, swapoff, reboot
		58,       // vhangup
		170, 112, // settimeofday, clock_settime
	}, newCalls...),
	clone: 220, ioctl: 29, socket: 198,
	onProcess: []uint32{261, 118, 119, 122, 274}, setpriority: 140, ioprioSet: 30,
	chown: []uint32{54, 55},
}

// otherCalls are the calls of 32-bit arm.
var otherCalls = callNumbers{
	refused: append([]uint32{
		103, 21, 52, 218, 74, 121, 131, 249, 337, 375, 364, 367, 386, 388, 370, 371, 309, 310, 311, 128, 129, 379, 347,
		51, 87, 115, 88, 111, 79, 262, 404,
	}, newCalls...),
	clone: 120, ioctl: 54, socket: 281,
	onProcess: []uint32{369, 154, 156, 241, 380}, setpriority: 97, ioprioSet: 314,
	chown: []uint32{182, 95, 16, 212, 207, 198, 325},
}
