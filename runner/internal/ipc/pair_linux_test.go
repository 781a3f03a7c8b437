package ipc

import (
	"syscall"
	"testing"
)

func TestReceivedDescriptorsAreCloseOnExecAtOnce(t *testing.T) {
	ours, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer theirs.Close()
	if err := syscall.Sendmsg(int(ours.Fd()), []byte{1}, syscall.UnixRights(0), nil, 0); err != nil {
		t.Fatal(err)
	}
	data, control := make([]byte, 1), make([]byte, syscall.CmsgSpace(4))
	_, n, _, _, err := blockingSocket(theirs.Fd()).ReadMsgUnix(data, control)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := syscall.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		t.Fatal(messages, err)
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		t.Fatal(fds, err)
	}
	defer syscall.Close(fds[0])
	flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fds[0]), syscall.F_GETFD, 0)
	if errno != 0 || flags&syscall.FD_CLOEXEC == 0 {
		t.Fatal("a command that is forked now has the descriptor", flags, errno)
	}
}
