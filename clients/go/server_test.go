package spillgate

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

const testToken = "0123456789abcdef0123456789abcdef"

// A testServer is the real server, of which the environment variable SPILLGATE_BIN has the path.
type testServer struct {
	url     string
	process *os.Process
}

// startServer starts one on a free port, on memory or on a Redis of its own.
func startServer(t testing.TB, policy string, onRedis bool, token string) *testServer {
	t.Helper()
	program := os.Getenv("SPILLGATE_BIN")
	if program == "" {
		t.Fatal("SPILLGATE_BIN must have the path of the program spillgate")
	}
	folder, err := os.MkdirTemp("", "spillgate-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	arguments := []string{"serve", "--config", file("limits.toml", policy), "--http", "127.0.0.1:0"}
	environment := []string{"SPILLGATE_SERVER__GRPC__ADDRESS=off", "SPILLGATE_SERVER__RESP__ADDRESS=off", "SPILLGATE_SERVER__ADMIN=off"}
	// A machine that is busy with something else is no outage of the store.
	environment = append(environment, "SPILLGATE_STORE__TIMEOUT=10s")
	for _, variable := range os.Environ() {
		// The server takes SPILLGATE_ variables for settings.
		if !strings.HasPrefix(variable, "SPILLGATE_") {
			environment = append(environment, variable)
		}
	}
	if token != "" {
		environment = append(environment, "SPILLGATE_SERVER__DATA_TOKEN_FILE="+file("token", token))
	}
	if onRedis {
		socket := filepath.Join(folder, "redis.sock")
		redis := exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder)
		run(t, redis)
		until(t, func() bool { _, err := os.Stat(socket); return err == nil }, func() string { return "redis-server does not start" })
		arguments = append(arguments, "--redis", "unix://"+socket)
	}
	log := file("log", "")
	output, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	command := exec.Command(program, arguments...)
	command.Env, command.Stderr = environment, output
	ended := run(t, command)
	read := func() string { text, _ := os.ReadFile(log); return string(text) }
	port := func() []string { return listening.FindStringSubmatch(read()) }
	problem := func() string { return "the server does not start: " + read() }
	until(t, func() bool {
		select {
		case <-ended:
			t.Fatal(problem())
		default:
		}
		return port() != nil
	}, problem)
	return &testServer{"http://127.0.0.1:" + port()[1], command.Process}
}

// run starts a program for the duration of the test. The channel is closed when it ends.
func run(t testing.TB, command *exec.Cmd) <-chan struct{} {
	t.Helper()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = command.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = command.Process.Kill()
		<-ended
	})
	return ended
}

func (s *testServer) signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if err := s.process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	if signal != syscall.SIGCONT {
		// Its threads stop, and its listener goes, a moment later.
		time.Sleep(100 * time.Millisecond)
	}
}

func until(t testing.TB, condition func() bool, problem func() string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(problem())
		}
	}
}

var listening = regexp.MustCompile(`HTTP on http:[^,]*:(\d+)`)
