// An application with three routes and one for all paths below a prefix, or with four files, for paths.py. The last argument is its port.
package main

import (
	"fmt"
	"net/http"
	"os"
	"testing/fstest"
)

func main() {
	var handler http.Handler
	if os.Args[1] == "files" {
		file := &fstest.MapFile{Data: []byte("login")}
		handler = http.FileServer(http.FS(fstest.MapFS{"login": file, "a/login": file, "gpt:go": file, "under/x": file}))
	} else {
		login := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "login") }
		mux := http.NewServeMux()
		mux.HandleFunc("/login", login)
		mux.HandleFunc("/a/login", login)
		mux.HandleFunc("/gpt:go", login)
		mux.HandleFunc("/under/", login)
		handler = mux
	}
	panic(http.ListenAndServe("127.0.0.1:"+os.Args[len(os.Args)-1], handler))
}
