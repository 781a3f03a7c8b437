package layers

import (
	"errors"
	"strings"
	"syscall"
)

// An archive of a layer is a PAX tar in which each directory comes before its entries, and these
// directly after it. Its first entry is the layer's directory. Beside the common records it has:
//
//   - extended attributes as libarchive writes them, because names may hold `=`;
//   - `HERMES.link`, the number of a file with several names, from 0. Its other names are hard links
//     to this number, so no path is looked up;
//   - `HERMES.type`, "socket", on the FIFO that stands for a socket;
//   - `HERMES.size`, the size of a file with holes, and `HERMES.parts`, the number of its other parts.
//     Its body begins with the offset and the length of each part, as 64-bit big-endian numbers.
//
// A whiteout is the character device 0:0.
//
// In the archive of a copy of a slot's directories, the slot's user and group have the number 0, for it
// has another one in each slot. It has no whiteouts, and all of its attributes are the tenant's.
const (
	recordXattr = "LIBARCHIVE.xattr."
	recordLink  = "HERMES.link"
	recordType  = "HERMES.type"
	recordSize  = "HERMES.size"
	recordParts = "HERMES.parts"
	socketType  = "socket"

	// maxDepth is how many directories of an archive lie in one another.
	maxDepth = 500
	// maxParts bounds the parts of one file, whose list takes 16 MiB.
	maxParts = 1 << 20
	partSize = 16
	maxName  = 255
	// maxXattrBytes bounds the attributes of one entry.
	maxXattrBytes = 128 << 10

	overlayPrefix = "user.overlay."
	overlayOpaque = overlayPrefix + "opaque"
	// escapedPrefix begins the attributes of an overlay that a tenant has on top of its own.
	escapedPrefix = overlayPrefix + "overlay."
)

// errForeignOverlay is the error for a layer of an overlay with other options.
var errForeignOverlay = errors.New("an overlay attribute that slots do not have")

// isPacked reports whether an attribute belongs into an archive. Some of overlayfs describe the
// layer below on this machine.
func isPacked(name string, value []byte, isDir bool) (bool, error) {
	if !strings.HasPrefix(name, overlayPrefix) || strings.HasPrefix(name, escapedPrefix) {
		return true, nil
	}
	switch strings.TrimPrefix(name, overlayPrefix) {
	case "opaque":
		if isDir && string(value) == "y" {
			return true, nil
		}
	case "origin", "impure", "nlink", "upper", "uuid":
		return false, nil
	}
	return false, errForeignOverlay
}

// part is a part of a file that is no hole.
type part struct{ begin, end int64 }

// findParts lists the parts of an open file.
func findParts(fd int, size int64) ([]part, error) {
	var parts []part
	for end := int64(0); end < size; {
		begin, stop, err := nextData(fd, end, size)
		if err != nil {
			return nil, err
		}
		if begin == stop {
			break
		}
		if len(parts) == maxParts {
			return nil, syscall.EFBIG
		}
		parts, end = append(parts, part{begin, stop}), stop
	}
	return parts, nil
}
