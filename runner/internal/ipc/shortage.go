package ipc

import (
	"errors"
	"syscall"
)

// ErrShortage is the end of a trial for want of memory, processes or room, which
// says nothing about what the sandbox allows.
var ErrShortage = errors.New("the sandbox or its host had too little memory, processes or room for it")

// IsShortage says whether an error is for want of something that may be there later:
// processes, memory, open files, room on a disk.
func IsShortage(err error) bool {
	for _, lack := range []error{ErrShortage, syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE,
		syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(err, lack) {
			return true
		}
	}
	return false
}

// RefusalError is the kernel's refusal of what isolation takes: "exhausted" where the
// same may succeed later, "isolation" where the sandbox does not allow it.
func RefusalError(err error) *Error {
	if IsShortage(err) {
		return &Error{Kind: "exhausted", Message: err.Error()}
	}
	return &Error{Kind: "isolation", Message: err.Error()}
}
