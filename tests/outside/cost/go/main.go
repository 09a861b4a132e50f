// Cost is a small service on net/http, with the limiter that LIMITER names.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"

	spillgate "github.com/spillgate/spillgate/clients/go"
)

func main() {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	var handler http.Handler = mux
	if os.Getenv("LIMITER") == "Spillgate" {
		client, err := spillgate.New(spillgate.Options{URL: os.Getenv("SPILLGATE_URL")})
		if err != nil {
			log.Fatal(err)
		}
		limit, err := spillgate.NewRateLimit(client, spillgate.RateLimitOptions{})
		if err != nil {
			log.Fatal(err)
		}
		handler = limit.Handler(mux)
	}
	descriptor, err := strconv.Atoi(os.Getenv("LISTEN_FD"))
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.FileListener(os.NewFile(uintptr(descriptor), "listening"))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(listener, handler))
}
