// Command pause waits to be ended. It is what holds a pod's namespaces open, and what is process 1 of the control
// plane's and of each node's: whatever loses its parent there becomes its child, and is not left behind as a zombie.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	orphans := make(chan os.Signal, 1)
	signal.Notify(orphans, syscall.SIGCHLD)
	for {
		select {
		case <-ended:
			return
		case <-orphans:
			reap()
		}
	}
}

// reap takes all children that have ended: one signal may stand for several.
func reap() {
	for {
		if child, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); child <= 0 || err != nil {
			return
		}
	}
}
