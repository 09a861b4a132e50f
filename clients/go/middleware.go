package spillgate

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
)

// A RateLimit is middleware for net/http: it answers denied requests itself, and adds the header fields of the decision to
// all others.
//
// The rules see the attributes ip, method and path, and those of Attributes. Permits of concurrency limits end when the
// handler returns.
type RateLimit struct {
	Client *Client
	// Attributes returns more attributes of a request, such as a user. False leaves the request unlimited.
	Attributes func(*http.Request) (map[string]string, bool)
	// Cost returns the cost of a request; one request if nil.
	Cost func(*http.Request) Cost
	// Domain of the rules.
	Domain string
	// Headers is the style of the header fields: "ietf" (if empty), "draft-7", "draft-6", "legacy", "none".
	Headers string
	// TrustedProxies are networks of proxies that may set X-Forwarded-For.
	TrustedProxies []string
}

// Handler limits the requests for a handler. It panics if one of TrustedProxies is no network.
func (l *RateLimit) Handler(next http.Handler) http.Handler {
	address, err := NewClientAddress(l.TrustedProxies...)
	if err != nil {
		panic(err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, isLimited := l.request(address, r)
		if !isLimited {
			next.ServeHTTP(w, r)
			return
		}
		// A client that has gone is no silent server, and must be limited too. The time-out bounds the call.
		decision, err := l.Client.Check(context.WithoutCancel(r.Context()), request)
		if err != nil {
			if l.Client.health.isFirstRefusal() {
				l.Client.logger().Warn("Spillgate refuses a request", "error", err, "on_failure", l.Client.OnFailure.String())
			}
			decision = l.Client.withoutServer(err)
		}
		if !decision.Allowed {
			deny(w, decision)
			return
		}
		if decision.Receipt != "" {
			// The client may have gone. Without a release, max_hold ends the permit.
			defer func() { _, _ = l.Client.Release(context.WithoutCancel(r.Context()), decision.Receipt) }()
		}
		r = r.WithContext(context.WithValue(r.Context(), decisionKey{}, decision))
		if len(decision.Headers) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		adding := &addingWriter{ResponseWriter: w, fields: decision.Headers}
		next.ServeHTTP(adding, r)
		adding.add()
	})
}

// FromContext returns the decision over the request that a handler serves.
func FromContext(ctx context.Context) (Decision, bool) {
	decision, has := ctx.Value(decisionKey{}).(Decision)
	return decision, has
}

type decisionKey struct{}

func (l *RateLimit) request(address *ClientAddress, r *http.Request) (Request, bool) {
	attributes := map[string]string{
		"ip":     address.Attribute(r.RemoteAddr, r.Header["X-Forwarded-For"]),
		"method": bounded(r.Method),
		"path":   bounded(separators.Replace(r.URL.Path)),
	}
	if l.Attributes != nil {
		more, isLimited := l.Attributes(r)
		if !isLimited {
			return Request{}, false
		}
		for name, value := range more {
			attributes[name] = bounded(value)
		}
	}
	request := Request{Domain: l.Domain, Attributes: attributes, Headers: l.Headers}
	if request.Headers == "" {
		request.Headers = "ietf"
	}
	if l.Cost != nil {
		request.Cost = l.Cost(r)
	}
	return request, true
}

// deny answers as the rule sets it, else with problem details (RFC 9457).
func deny(w http.ResponseWriter, decision Decision) {
	problem := problemOf(decision)
	status := problem.Status
	body, err := json.Marshal(problem)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if decision.Denial != nil {
		status, body = decision.Denial.Status, []byte(decision.Denial.Body)
	}
	header := w.Header()
	header.Set("Content-Type", "application/problem+json")
	for name, value := range decision.Headers {
		header.Set(name, value)
	}
	if decision.Source == SourceClient {
		header.Set("Retry-After", "1")
	}
	w.WriteHeader(status)
	// A client that is gone needs no answer.
	_, _ = w.Write(body)
}

type problemDetails struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail"`
	Violated []string `json:"violated-policies"`
}

func problemOf(decision Decision) problemDetails {
	details := problemDetails{
		problemTypes + "quota-exceeded", "Quota exceeded", http.StatusTooManyRequests, detailOf(decision), decision.ViolatedPolicies(),
	}
	switch decision.Reason {
	case LimitExceeded, CostExceedsLimit:
	case Blocked:
		details.Status = http.StatusForbidden
	default:
		details.Type, details.Title = problemTypes+"temporary-reduced-capacity", "Temporarily reduced capacity"
		details.Status = http.StatusServiceUnavailable
	}
	return details
}

func detailOf(decision Decision) string {
	switch decision.Reason {
	case LimitExceeded:
		if seconds := decision.Headers["retry-after"]; seconds != "" {
			return "Try again in " + seconds + " s."
		}
		return "The limit has no room at the moment."
	case CostExceedsLimit:
		return "The cost is larger than the limit can ever hold."
	case Blocked:
		return "Requests like this one are blocked."
	case Overloaded:
		return "The rate limiter is overloaded."
	}
	return "The rate limiter cannot reach its store."
}

// bounded makes any text a value that the server accepts, so that no client can cause an error by its request.
func bounded(value string) string {
	text := strings.ToValidUTF8(value, "\uFFFD")
	if len(text) <= valueMax {
		return text
	}
	hash := sha256.Sum256([]byte(value))
	// Both ends stay, so that rules for a prefix or a suffix match.
	first, last := text[:endMax], text[len(text)-endMax:]
	return strings.ToValidUTF8(first+"sha256:"+hex.EncodeToString(hash[:])+last, "")
}

// separators escapes what the server does not take for a part of the path.
var separators = strings.NewReplacer("%", "%25", "?", "%3F", "#", "%23")

// An addingWriter adds fields when the head is written, unless the application wrote one of them: an inner layer stands
// nearer to the work.
type addingWriter struct {
	http.ResponseWriter
	fields  map[string]string
	isAdded bool
}

func (w *addingWriter) add() {
	if w.isAdded {
		return
	}
	w.isAdded = true
	header := w.Header()
	for name := range w.fields {
		if header.Get(name) != "" {
			return
		}
	}
	for name, value := range w.fields {
		header.Set(name, value)
	}
}

func (w *addingWriter) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		w.add()
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *addingWriter) Write(body []byte) (int, error) {
	w.add()
	return w.ResponseWriter.Write(body)
}

// ReadFrom keeps the way by which files are sent without copying.
func (w *addingWriter) ReadFrom(body io.Reader) (int64, error) {
	w.add()
	return io.Copy(w.ResponseWriter, body)
}

// Flush serves handlers that look for http.Flusher.
func (w *addingWriter) Flush() { _ = w.FlushError() }

// FlushError serves http.ResponseController, by which handlers learn that a client has gone.
func (w *addingWriter) FlushError() error {
	w.add()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack serves handlers that look for http.Hijacker, such as those of WebSockets.
func (w *addingWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// Unwrap serves http.ResponseController.
func (w *addingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

const (
	problemTypes = "https://iana.org/assignments/http-problem-types#"
	valueMax     = 4096
	// The bytes at either end of a longer value that rules see.
	endMax = 1024
)
