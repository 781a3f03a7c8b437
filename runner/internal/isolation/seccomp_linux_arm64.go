package isolation

const nativeArch = 0xc00000b7

var (
	otherABISockets []uint32
	// 32-bit arm's socket and io_uring_setup.
	otherArchSockets = []uint32{281, 425}
)
