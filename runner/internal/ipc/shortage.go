package ipc

import (
	"errors"
	"syscall"
)

// ErrShortage is the end of a trial that lacked memory, processes or disk space. Such a trial
// proves nothing about the sandbox.
var ErrShortage = errors.New("the sandbox or its host had too little memory, processes or disk space for it")

// IsShortage reports whether an error means a lack that may pass: of processes, memory, open files
// or disk space.
func IsShortage(err error) bool {
	for _, lack := range []error{ErrShortage, syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE,
		syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(err, lack) {
			return true
		}
	}
	return false
}

// RefusalError converts the kernel's refusal of an isolation step: "exhausted" if the step may
// succeed later, "isolation" if the sandbox does not allow it.
func RefusalError(err error) *Error {
	if IsShortage(err) {
		return &Error{Kind: "exhausted", Message: err.Error()}
	}
	return &Error{Kind: "isolation", Message: err.Error()}
}
