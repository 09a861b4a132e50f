package spillgate

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestExample builds and runs the example of README.md.
func TestExample(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```go example\n(.*?)\n```").FindSubmatch(readme)
	if example == nil {
		t.Fatal("README.md has no example")
	}
	server := startServer(t, "", false, "")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	source := strings.NewReplacer("http://127.0.0.1:8080", server.url, "127.0.0.1:8000", address, "5/minute", "2/day").Replace(string(example[1]))
	program := build(t, source, "package main\n")
	run(t, exec.Command(program))
	until(t, func() bool { _, err := net.Dial("tcp", address); return err == nil }, func() string { return "the example does not listen" })
	for _, expected := range []struct {
		status int
		body   string
	}{{200, "ok"}, {200, "ok"}, {429, `"title":"Quota exceeded"`}} {
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+address+"/login", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != expected.status || !strings.Contains(string(body), expected.body) {
			t.Fatalf("%d %s %v, expected %d %s", response.StatusCode, body, err, expected.status, expected.body)
		}
		if response.Header.Get("RateLimit") == "" {
			t.Fatalf("no header fields in %v", response.Header)
		}
	}
}

// TestSnippets builds the example of README.md with all its other Go code in its function main, in this order.
func TestSnippets(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	// What the snippets take from their reader.
	readers := `package main

import (
	"context"
	"net/http"
)

var (
	ctx                    = context.Background()
	orders, search, models http.Handler
)

type modelAnswer struct{ Tokens int64 }

func userOf(*http.Request) string                        { return "" }
func callTheModel(context.Context) (modelAnswer, error) { return modelAnswer{}, nil }
`
	example := regexp.MustCompile("(?s)```go example\n(.*?)}\n```").FindSubmatch(readme)
	snippets := regexp.MustCompile("(?s)```go\n(.*?)\n```").FindAllSubmatch(readme, -1)
	if example == nil || len(snippets) == 0 {
		t.Fatal("README.md has no example or no snippets")
	}
	source := strings.Replace(string(example[1]), "\"net/http\"\n", "\"net/http\"\n\t\"time\"\n", 1)
	for _, snippet := range snippets {
		source += string(snippet[1]) + "\n"
	}
	build(t, source+"}\n", readers)
}

// TestRule decides by the rule of README.md.
func TestRule(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	policy := regexp.MustCompile("(?s)```toml\n(.*?)\n```").FindSubmatch(readme)
	if policy == nil {
		t.Fatal("README.md has no rule")
	}
	client := newClient(t, Options{URL: startServer(t, string(policy[1]), false, "").url, Timeout: patience})
	handler := newRateLimit(t, client, RateLimitOptions{}).Handler(answering(200))
	login := requestFrom("192.0.2.1", "GET", "/login")
	if got := statuses(handler, login, login, login, login, login, login); got != "200 200 200 200 200 429" {
		t.Errorf("got %s", got)
	}
}

// build builds a program of two files with this module.
func build(t *testing.T, source, more string) string {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	module := "module example\n\ngo 1.23\n\nrequire github.com/spillgate/spillgate/clients/go v0.0.0\n\n" +
		"replace github.com/spillgate/spillgate/clients/go => " + here + "\n"
	for name, text := range map[string]string{"main.go": source, "more.go": more, "go.mod": module} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(folder, "example")
	command := exec.Command("go", "build", "-o", program, ".")
	command.Dir = folder
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return program
}
