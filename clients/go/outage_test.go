package spillgate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestAnAnswerThatCameWhileTheProcessStoodStillIsRead stops the process of a client in the middle of a call, for much longer
// than its time-out, and answers meanwhile.
func TestAnAnswerThatCameWhileTheProcessStoodStillIsRead(t *testing.T) {
	if url := os.Getenv("SPILLGATE_STANDING_STILL"); url != "" {
		client := newClient(t, Options{URL: url, Timeout: time.Second})
		d, err := client.Check(context.Background(), inlineRequest)
		if err != nil || d.Source != "store" {
			t.Errorf("got %+v and %v", d, err)
		}
		return
	}
	arrived, answer := make(chan struct{}), make(chan struct{})
	url := hostileServer(func(connection net.Conn, path string, items int) {
		close(arrived)
		<-answer
		decides(allows)(connection, path, items)
	}).start(t)
	command := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	command.Env = append(os.Environ(), "SPILLGATE_STANDING_STILL="+url)
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	<-arrived
	_ = command.Process.Signal(syscall.SIGSTOP)
	time.Sleep(2 * time.Second)
	close(answer)
	time.Sleep(100 * time.Millisecond)
	_ = command.Process.Signal(syscall.SIGCONT)
	if err := command.Wait(); err != nil {
		t.Error(err)
	}
}

func TestAHungServerIsLeftAloneAfterThreeFailuresAndHasOneTryAtATime(t *testing.T) {
	var calls, atOnce, most atomic.Int64
	release := make(chan struct{})
	url := hostileServer(func(net.Conn, string, int) {
		calls.Add(1)
		now := atOnce.Add(1)
		for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
		}
		<-release
		atOnce.Add(-1)
	}).start(t)
	client := newClient(t, Options{URL: url, Timeout: 100 * time.Millisecond})
	ctx := context.Background()
	for range opensAfter {
		if d, _ := client.Check(ctx, Request{}); errors.Is(d.Err, ErrBreakerOpen) {
			t.Errorf("got %v", d.Err)
		}
	}
	if !client.dispatcher.isOpen() {
		t.Fatal("the breaker is closed")
	}
	before := calls.Load()
	var all sync.WaitGroup
	start := time.Now()
	for range 50 {
		all.Add(1)
		go func() {
			defer all.Done()
			for time.Since(start) < time.Second {
				_, _ = client.Check(ctx, Request{})
				_, _ = client.Check(ctx, Request{Wait: time.Minute})
				_, _ = client.Release(ctx, "AQAB")
				time.Sleep(time.Millisecond)
			}
		}()
	}
	all.Wait()
	took := time.Since(start)
	if tried := calls.Load() - before; tried < 1 || tried > int64(took/tryEvery)+1 {
		t.Errorf("tried %d times in %v", tried, took)
	}
	close(release)
}

func TestFailuresDoNotCountWhileAnswersArrive(t *testing.T) {
	// Only batches have an answer.
	var calls atomic.Int64
	url := hostileServer(func(connection net.Conn, path string, items int) {
		if path == "/v1/check/batch" {
			decides(allows)(connection, path, items)
		} else {
			calls.Add(1)
		}
	}).start(t)
	client := newClient(t, Options{URL: url, Timeout: 500 * time.Millisecond})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range opensAfter + 1 {
			_, _ = client.Release(context.Background(), "AQAB")
		}
	}()
	for isEnded := false; !isEnded; {
		if d, err := client.Check(context.Background(), inlineRequest); d.Source != "store" || err != nil {
			t.Fatalf("got %+v and %v", d, err)
		}
		select {
		case <-ended:
			isEnded = true
		default:
		}
	}
	if calls.Load() < opensAfter {
		t.Errorf("%d calls without an answer", calls.Load())
	}
}

// TestAServerThatIsBackDecidesSoon kills and starts a server, while requests keep coming.
func TestAServerThatIsBackDecidesSoon(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	handler := &answeringServer{status: 200, body: allows}
	first := &http.Server{Handler: handler}
	go func() { _ = first.Serve(listener) }()
	client := newClient(t, Options{URL: "http://" + address})
	var isBack, isOver atomic.Bool
	var backAt, decidedAt atomic.Int64
	var unasked atomic.Int64
	var all sync.WaitGroup
	for range 20 {
		all.Add(1)
		go func() {
			defer all.Done()
			for !isOver.Load() {
				back := isBack.Load()
				d, _ := client.Check(context.Background(), Request{})
				if back && d.Source == SourceClient {
					unasked.Add(1)
				}
				if back && d.Source != SourceClient {
					decidedAt.CompareAndSwap(0, time.Now().UnixNano())
				}
				time.Sleep(time.Millisecond)
			}
		}()
	}
	time.Sleep(100 * time.Millisecond)
	_ = first.Close()
	until(t, client.dispatcher.isOpen, func() string { return "the breaker is closed" })
	time.Sleep(500 * time.Millisecond)
	until(t, func() bool { listener, err = net.Listen("tcp", address); return err == nil }, func() string { return fmt.Sprint(err) })
	second := &http.Server{Handler: handler}
	go func() { _ = second.Serve(listener) }()
	backAt.Store(time.Now().UnixNano())
	isBack.Store(true)
	until(t, func() bool { return decidedAt.Load() != 0 }, func() string { return "the server does not decide" })
	isOver.Store(true)
	all.Wait()
	_ = second.Close()
	t.Logf("the server decides %v after it is back; %d checks did not reach it", time.Duration(decidedAt.Load()-backAt.Load()), unasked.Load())
}
