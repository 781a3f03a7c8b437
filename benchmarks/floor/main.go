// Command floor measures the cost of starting a program: `floor SECONDS AT_ONCE PROGRAM ARGS…` prints the times of all
// starts in nanoseconds and the total time as JSON.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 3 {
		return fmt.Errorf("usage: floor SECONDS AT_ONCE PROGRAM ARGS…")
	}
	seconds, err := strconv.ParseFloat(args[0], 64)
	if err != nil {
		return err
	}
	atOnce, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	var (
		lock    sync.Mutex
		group   sync.WaitGroup
		times   []int64
		failure error
	)
	begin := time.Now()
	for range atOnce {
		group.Go(func() {
			for {
				start := time.Now()
				err := exec.Command(args[2], args[3:]...).Run()
				lock.Lock()
				times = append(times, int64(time.Since(start)))
				if err != nil {
					failure = err
				}
				done := failure != nil || time.Since(begin).Seconds() >= seconds
				lock.Unlock()
				if done {
					return
				}
			}
		})
	}
	group.Wait()
	if failure != nil {
		return failure
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"times_ns": times, "elapsed_ns": int64(time.Since(begin))})
}
