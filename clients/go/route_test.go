package spillgate

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// statuses sends requests to a handler, and returns the status of each.
func statuses(handler http.Handler, requests ...*http.Request) string {
	var all []string
	for _, request := range requests {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, request)
		all = append(all, fmt.Sprint(recorder.Code))
	}
	return strings.Join(all, " ")
}

func requestFrom(ip, method, path string) *http.Request {
	request := httptest.NewRequest(method, path, nil)
	request.RemoteAddr = ip + ":50000"
	return request
}

func newRealRateLimit(t *testing.T, options RateLimitOptions) *RateLimit {
	t.Helper()
	policy := "[[rule]]\nname = \"login\"\nmatch = { path = \"/users/{id}\" }\nkey = [\"ip\"]\nlimits = [\"1/day\"]\n"
	server := startServer(t, policy, false, "")
	return newRateLimit(t, newClient(t, Options{URL: server.url, Timeout: patience, OnFailure: OnFailureDeny}), options)
}

func answering(status int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
}

func TestARouteHasALimitOfItsOwnForEachAddress(t *testing.T) {
	limit := newRealRateLimit(t, RateLimitOptions{})
	mux := http.NewServeMux()
	mux.Handle("POST /login/{user}", limit.Route("2/day", answering(200)))
	mux.Handle("GET /search", limit.RouteWith(InlineLimit{Quota: "1/day", Burst: 1}, answering(200)))
	mux.Handle("GET /free", answering(200))
	get := func(ip, path string) *http.Request { return requestFrom(ip, "GET", path) }
	post := func(ip, path string) *http.Request { return requestFrom(ip, "POST", path) }
	if got := statuses(mux,
		post("192.0.2.1", "/login/a"), post("192.0.2.1", "/login/b"), post("192.0.2.1", "/login/c"), post("192.0.2.2", "/login/c"),
		get("192.0.2.1", "/search"), get("192.0.2.1", "/search"), get("192.0.2.1", "/free"),
	); got != "200 200 429 200 200 429 200" {
		t.Errorf("got %s", got)
	}
}

func TestTheKeyOfARouteIsItsNameAndItsSubject(t *testing.T) {
	for want, options := range map[string]RateLimitOptions{
		`["POST /users/{id}","192.0.2.1"]`: {},
		`["login","192.0.2.1"]`:            {Name: "login"},
		`["POST /users/{id}","a\"<b>"]`:    {Key: func(*http.Request) (string, bool) { return `a"<b>`, true }},
		// JSON allows U+2028 as it is, but an escape that the subject itself has stays one.
		"[\"login\",\"a\u2028b\u2029\"]": {Name: "login", Key: func(*http.Request) (string, bool) { return "a\u2028b\u2029", true }},
		`["login","\\u2028\\\\u2029"]`:   {Name: "login", Key: func(*http.Request) (string, bool) { return `\u2028\\u2029`, true }},
	} {
		var key string
		limit := newRateLimit(t, newClient(t, Options{}), options)
		mux := http.NewServeMux()
		mux.HandleFunc("POST /users/{id}", func(_ http.ResponseWriter, r *http.Request) {
			request, _ := limit.requestByLimit(&InlineLimit{Quota: "1/day"}, r)
			key = request.Key
		})
		mux.ServeHTTP(httptest.NewRecorder(), requestFrom("192.0.2.1", "POST", "/users/7"))
		if key != want {
			t.Errorf("got %s, expected %s", key, want)
		}
	}
}

func TestEqualRoutesShareTheirCountersUnlessADomainOrANameDiffers(t *testing.T) {
	client := newRealRateLimit(t, RateLimitOptions{}).client
	for i, want := range []string{"200 429", "429 429", "200 429", "200 429"} {
		options := []RateLimitOptions{{}, {}, {Domain: "shop"}, {Name: "search"}}[i]
		mux := http.NewServeMux()
		mux.Handle("GET /search", newRateLimit(t, client, options).Route("1/day", answering(200)))
		search := requestFrom("192.0.2.1", "GET", "/search")
		if got := statuses(mux, search, search); got != want {
			t.Errorf("service %d: got %s", i, got)
		}
	}
}

func TestTheHeaderFieldsOfAnAllowedRequestAreThoseOfTheRoute(t *testing.T) {
	limit := newRealRateLimit(t, RateLimitOptions{})
	mux := http.NewServeMux()
	mux.Handle("GET /users/{id}", limit.Route("5/day", answering(200)))
	for _, policy := range []string{`"default";q=5`, `"login";q=1`} {
		recorder := httptest.NewRecorder()
		limit.Handler(mux).ServeHTTP(recorder, requestFrom("192.0.2.1", "GET", "/users/7"))
		if got := strings.Join(recorder.Header()["Ratelimit-Policy"], "\n"); !strings.HasPrefix(got, policy) {
			t.Errorf("got %s", got)
		}
	}
}

func TestAKeyFunctionThatReturnsFalseLeavesTheRequestUnlimited(t *testing.T) {
	limit := newRealRateLimit(t, RateLimitOptions{Name: "a", Key: func(r *http.Request) (string, bool) {
		user := r.Header.Get("User")
		return user, user != ""
	}})
	handler := limit.Route("1/day", answering(200))
	ada := requestFrom("192.0.2.1", "GET", "/")
	ada.Header.Set("User", "ada")
	other := requestFrom("192.0.2.1", "GET", "/")
	if got := statuses(handler, ada, ada, other, other); got != "200 429 200 200" {
		t.Errorf("got %s", got)
	}
}

func TestOnlyFailedLoginsCount(t *testing.T) {
	limit := newRealRateLimit(t, RateLimitOptions{Name: "login", CountIf: func(status int) bool { return status == http.StatusUnauthorized }})
	login := func(status int) *http.Request {
		request := requestFrom("192.0.2.1", "POST", "/login")
		request.Header.Set("Status", fmt.Sprint(status))
		return request
	}
	handler := limit.Route("3/day", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var status int
		_, _ = fmt.Sscan(r.Header.Get("Status"), &status)
		if status != 200 {
			w.WriteHeader(status)
		}
	}))
	good, bad := login(200), login(401)
	if got := statuses(handler, good, good, good, good, bad, good, bad, good, bad, good, bad); got != "200 200 200 200 401 200 401 200 401 429 429" {
		t.Errorf("got %s", got)
	}
}

func TestAttemptsAtTheSameTimeCannotExceedALimitByOutcome(t *testing.T) {
	limit := newRealRateLimit(t, RateLimitOptions{Name: "login", CountIf: func(status int) bool { return status == http.StatusUnauthorized }})
	var lock sync.Mutex
	reached := 0
	handler := limit.Route("5/day", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		lock.Lock()
		reached++
		lock.Unlock()
		time.Sleep(time.Millisecond)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	var all sync.WaitGroup
	for range 50 {
		all.Add(1)
		go func() {
			defer all.Done()
			statuses(handler, requestFrom("192.0.2.1", "POST", "/login"))
		}()
	}
	all.Wait()
	if reached != 5 {
		t.Errorf("%d attempts reached the handler", reached)
	}
}

func TestAPanicCountsAsAnErrorOfTheServer(t *testing.T) {
	var status int
	limit := newRealRateLimit(t, RateLimitOptions{Name: "a", CountIf: func(s int) bool { status = s; return false }})
	handler := limit.Route("1/day", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	for range 2 {
		func() {
			defer func() { _ = recover() }()
			statuses(handler, requestFrom("192.0.2.1", "GET", "/"))
		}()
		if status != http.StatusInternalServerError {
			t.Fatalf("status %d: the handler did not run, or its panic has another status", status)
		}
		status = 0
	}
}

func TestAnAttemptWhoseClientLeavesBeforeTheResponseCounts(t *testing.T) {
	never := func(int) bool { return false }
	for name, end := range map[string]func(http.ResponseWriter){
		"writes nothing":     func(http.ResponseWriter) {},
		"writes for nothing": func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) },
		"panics":             func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	} {
		limit := newRealRateLimit(t, RateLimitOptions{Name: "a", CountIf: never})
		request, leave := context.WithCancel(context.Background())
		handler := limit.Route("1/day", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			leave()
			end(w)
		}))
		attempt := func(ctx context.Context) (got string) {
			defer func() { _ = recover() }()
			return statuses(handler, requestFrom("192.0.2.1", "GET", "/").WithContext(ctx))
		}
		attempt(request)
		if got := attempt(context.Background()); got != "429" {
			t.Errorf("%s: got %s", name, got)
		}
	}
}

func TestAnAttemptWhoseClientLeavesDuringTheResponseHasItsOutcome(t *testing.T) {
	limit := newRealRateLimit(t, RateLimitOptions{Name: "a", CountIf: func(status int) bool { return status == http.StatusUnauthorized }})
	request, leave := context.WithCancel(context.Background())
	handler := limit.Route("1/day", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		leave()
	}))
	from := requestFrom("192.0.2.1", "GET", "/")
	if got := statuses(handler, from.WithContext(request), from); got != "200 200" {
		t.Errorf("got %s", got)
	}
}

func TestThePathIsThatOfTheRouteIfTheOptionSaysSo(t *testing.T) {
	limit := newRealRateLimit(t, RateLimitOptions{Path: PathOfRoute})
	mux := http.NewServeMux()
	mux.Handle("GET example.com/users/{id}", limit.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		decision, has := FromContext(r.Context())
		if !has || decision.Rule != "login" {
			t.Errorf("got %+v", decision)
		}
	})))
	// The policy has the rule /users/{id}, which matches one segment; the path of the request has two.
	request := requestFrom("192.0.2.1", "GET", "http://example.com/users/a%2Fb")
	if got := statuses(mux, request, request); got != "200 429" {
		t.Errorf("got %s", got)
	}
}

func TestALimitThatTheServerCannotReadPanicsAtTheStart(t *testing.T) {
	limit := newRateLimit(t, newClient(t, Options{}), RateLimitOptions{})
	panics := func(quota string) (message string) {
		defer func() {
			if reason := recover(); reason != nil {
				message = fmt.Sprint(reason)
			}
		}()
		limit.Route(quota, answering(200))
		return ""
	}
	for _, quota := range []string{
		"unlimited", "block", "5/minute", "1_000_000/month", "5/30s", "5/s", "5/1_000ms", "5/second", "5/hour", "5/day",
		"5/week", "5/year", "5/m", "5/2h", "5/366d",
	} {
		if got := panics(quota); got != "" {
			t.Errorf("%q: %s", quota, got)
		}
	}
	for _, quota := range []string{
		"", "20", "none", "Block", "5/minut", "5/minutes", "5 per minute", "5 / minute", " 5/minute", "5/minute\n", "5/", "/minute", "5/30",
		"5/1w", "5/2minute", "5/-1s", "-5/s", "1.5/s", "1,000/s", "_5/s", "5_/s", "5__0/s", "5/_3s", "5/s/s", "٥/s", "unlimited/s",
	} {
		if got := panics(quota); !strings.Contains(got, fmt.Sprintf("%q", quota)) || !strings.Contains(got, `"5/minute"`) {
			t.Errorf("%q: %s", quota, got)
		}
	}
}

func TestALimitThatTheServerRefusesLetsOnFailureDecide(t *testing.T) {
	limit := newRealRateLimit(t, RateLimitOptions{Name: "a"})
	if got := statuses(limit.Route("5/400d", answering(200)), requestFrom("192.0.2.1", "GET", "/")); got != "503" {
		t.Errorf("got %s", got)
	}
	d, err := limit.client.Check(context.Background(), Request{})
	if err != nil || d.Source == SourceClient {
		t.Errorf("it counts as a failure of the server: %+v and %v", d, err)
	}
}
