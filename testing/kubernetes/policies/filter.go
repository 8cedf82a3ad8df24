package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A call of the packet filter's tools waits for others' at most.
const commandTimeout = 20 * time.Second

// The table is `mangle`, which packets pass before `filter`: kube-proxy accepts some there.
const table = "mangle"

var ownChain = regexp.MustCompile(`(?m)^:(` + prefix + `\S+) `)

// filter is the node's packet filter.
type filter struct {
	applied string
}

// forget lets the next rules be applied even if they are the last ones.
func (f *filter) forget() { f.applied = "" }

// apply replaces all rules at once.
func (f *filter) apply(ctx context.Context, wanted *rules) error {
	text := strings.Join(wanted.lines, "\n")
	if f.applied == text {
		return nil
	}
	there, err := command(ctx, "", "iptables-save", "-t", table)
	if err != nil {
		return err
	}
	var input strings.Builder
	fmt.Fprintf(&input, "*%s\n", table)
	// A chain that is declared is emptied.
	for _, chain := range wanted.chains {
		fmt.Fprintf(&input, ":%s - [0:0]\n", chain)
	}
	var leftOver []string
	for _, found := range ownChain.FindAllStringSubmatch(there, -1) {
		if !slices.Contains(wanted.chains, found[1]) {
			leftOver = append(leftOver, found[1])
			fmt.Fprintf(&input, ":%s - [0:0]\n", found[1])
		}
	}
	for _, hook := range []string{"FORWARD", "INPUT"} {
		if !strings.Contains(there, fmt.Sprintf("-A %s -j %s\n", hook, entry)) {
			fmt.Fprintf(&input, "-I %s -j %s\n", hook, entry)
		}
	}
	input.WriteString(text + "\n")
	for _, chain := range leftOver {
		fmt.Fprintf(&input, "-X %s\n", chain)
	}
	input.WriteString("COMMIT\n")
	if _, err := command(ctx, input.String(), "iptables-restore", "--noflush", "--wait", "10"); err != nil {
		return err
	}
	f.applied = text
	return nil
}

func command(ctx context.Context, input, name string, arguments ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	process := exec.CommandContext(ctx, name, arguments...)
	process.Stdin = strings.NewReader(input)
	var output, complaint bytes.Buffer
	process.Stdout, process.Stderr = &output, &complaint
	if err := process.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s\n%s", name, err, complaint.String(), input)
	}
	return output.String(), nil
}
