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
	policy, err := os.ReadFile(filepath.Join(conformanceFolder(), "policy.toml"))
	if err != nil {
		t.Fatal(err)
	}
	server := startServer(t, string(policy), false, "")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	source := strings.NewReplacer("http://127.0.0.1:8080", server.url, "127.0.0.1:8000", address).Replace(string(example[1]))
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	module := "module example\n\ngo 1.23\n\nrequire github.com/spillgate/spillgate/clients/go v0.0.0\n\n" +
		"replace github.com/spillgate/spillgate/clients/go => " + here + "\n"
	for name, text := range map[string]string{"main.go": source, "go.mod": module} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(folder, "example")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = folder
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	run(t, exec.Command(program))
	until(t, func() bool { _, err := net.Dial("tcp", address); return err == nil }, func() string { return "the example does not listen" })
	for _, expected := range []struct {
		status int
		body   string
	}{{200, "ok"}, {200, "ok"}, {429, `"violated-policies":["login"]`}} {
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
