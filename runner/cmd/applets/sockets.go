package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// listen PORT echoes each connection on 127.0.0.1; port 0 takes a free port.
func listen(args []string) error { return echoServer("tcp", "127.0.0.1:"+arg(args, 0)) }

// abstract NAME echoes on an abstract Unix socket.
func abstract(args []string) error { return echoServer("unix", "@"+arg(args, 0)) }

func echoServer(network, address string) error {
	l, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn)
		}()
	}
}

// dial HOST PORT and reach NAME print whether a connection is possible.
func dial(args []string) error {
	return tryDial("tcp", net.JoinHostPort(arg(args, 0), arg(args, 1)))
}

func reach(args []string) error {
	name := arg(args, 0)
	if name != "" && name[0] != '/' {
		name = "@" + name
	}
	return tryDial("unix", name)
}

// talk PATH and talk HOST PORT send standard input to a Unix socket or a TCP port and print the
// answer.
func talk(args []string) error {
	network, address := "unix", arg(args, 0)
	if len(args) == 2 {
		network, address = "tcp", net.JoinHostPort(args[0], args[1])
	}
	conn, err := net.Dial(network, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	go func() {
		_, _ = io.Copy(conn, os.Stdin)
		_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	}()
	_, err = io.Copy(os.Stdout, conn)
	return err
}

func tryDial(network, address string) error {
	conn, err := net.DialTimeout(network, address, 3*time.Second)
	if err == nil {
		conn.Close()
	}
	return printOutcome(err)
}
