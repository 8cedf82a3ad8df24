// Command setup makes what a test cluster needs before it starts: credentials, and images of single programs.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "setup:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		return fmt.Errorf("name what to make: credentials or image")
	}
	flags := flag.NewFlagSet(arguments[0], flag.ExitOnError)
	switch arguments[0] {
	case "credentials":
		folder := flags.String("folder", "", "where they are written")
		server := flags.String("server", "", "the API server's address, as the machine reaches it")
		service := flags.String("service-address", "", "the address of the service `kubernetes`")
		network := flags.String("node-network", "", "the first three numbers of the nodes' addresses")
		nodes := flags.Int("nodes", 0, "how many nodes get credentials")
		_ = flags.Parse(arguments[1:])
		return credentials(*folder, *server, *service, *network, *nodes)
	case "image":
		archive := flags.String("archive", "", "the file that is written")
		name := flags.String("name", "", "the image's name and tag")
		program := flags.String("program", "", "the static program that is all it contains")
		_ = flags.Parse(arguments[1:])
		return image(*archive, *name, *program)
	default:
		return fmt.Errorf("credentials or image, not %s", arguments[0])
	}
}
