package isolation

const nativeArch = 0xc000003e

var (
	// x32's socket and io_uring_setup.
	otherABISockets = []uint32{0x40000000 + 41, 0x40000000 + 425}
	// i386's socketcall, socket and io_uring_setup.
	otherArchSockets = []uint32{102, 359, 425}
)
