// Command probe is what the pods of `.ci/kubernetes-cluster check` run, and what asks them: a server with a file on a
// volume, and a client that fetches an address, also by a name that a given DNS server resolves.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// An address that does not answer within this is one that cannot be reached.
const requestTimeout = 5 * time.Second

func main() {
	serve := flag.String("serve", "", "the address to serve")
	file := flag.String("file", "", "the file that is served and, with PUT, written")
	dns := flag.String("dns", "", "the DNS server that resolves names, instead of the system's")
	put := flag.String("put", "", "what is sent with PUT")
	flag.Parse()
	if *serve != "" {
		log.Fatal(server(*serve, *file))
	}
	if err := fetch(flag.Arg(0), *put, *dns); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func server(address, file string) error {
	http.HandleFunc("GET /name", func(answer http.ResponseWriter, _ *http.Request) {
		name, err := os.Hostname()
		respond(answer, []byte(name), err)
	})
	http.HandleFunc("GET /file", func(answer http.ResponseWriter, _ *http.Request) {
		content, err := os.ReadFile(file)
		respond(answer, content, err)
	})
	http.HandleFunc("PUT /file", func(answer http.ResponseWriter, request *http.Request) {
		content, err := io.ReadAll(request.Body)
		if err == nil {
			err = os.WriteFile(file, content, 0o600)
		}
		respond(answer, nil, err)
	})
	log.Printf("serving %s", address)
	return http.ListenAndServe(address, nil)
}

func respond(answer http.ResponseWriter, content []byte, err error) {
	if err != nil {
		http.Error(answer, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = answer.Write(content)
}

func fetch(url, put, dns string) error {
	client := &http.Client{Timeout: requestTimeout}
	if dns != "" {
		client.Transport = &http.Transport{DialContext: (&net.Dialer{Resolver: resolver(dns)}).DialContext}
	}
	method, body := http.MethodGet, io.Reader(nil)
	if put != "" {
		method, body = http.MethodPut, strings.NewReader(put)
	}
	request, err := http.NewRequest(method, url, body)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", answer.Status, content)
	}
	_, err = os.Stdout.Write(content)
	return err
}

func resolver(server string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(server, "53"))
	}}
}
