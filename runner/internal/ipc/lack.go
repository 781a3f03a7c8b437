package ipc

import (
	"errors"
	"syscall"
)

// ErrLack is the end of a trial for want of memory, processes or room, which
// says nothing about what the sandbox allows.
var ErrLack = errors.New("the sandbox or its host had too little memory, processes or room for it")

// Lacks says whether an error is for want of something that may be there later:
// processes, memory, open files, room on a disk.
func Lacks(err error) bool {
	for _, lack := range []error{ErrLack, syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE,
		syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(err, lack) {
			return true
		}
	}
	return false
}

// Refused is the kernel's refusal of what isolation takes: "exhausted" where the
// same may succeed later, "isolation" where the sandbox does not allow it.
func Refused(err error) *Error {
	if Lacks(err) {
		return &Error{Kind: "exhausted", Message: err.Error()}
	}
	return &Error{Kind: "isolation", Message: err.Error()}
}
