package spillgate

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A RateLimit is middleware for net/http: it answers denied requests itself, and adds the header fields of the decision to
// all others. Make one with NewRateLimit.
//
// Its Handler limits by the rules of the policy, which see the attributes ip, method and path. Its Route limits by a limit
// that stands in the code. Permits of concurrency limits end when the handler returns.
type RateLimit struct {
	client  *Client
	options RateLimitOptions
	address *ClientAddress
}

// RateLimitOptions are the settings of a RateLimit. Every field has a default.
type RateLimitOptions struct {
	// Attributes returns more attributes of a request for the rules, such as a user. False leaves the request unlimited.
	Attributes func(*http.Request) (map[string]string, bool)
	// Path is what the attribute "path" has: PathOfRequest, or PathOfRoute.
	Path Path
	// Cost returns the cost of a request; one request if nil.
	Cost func(*http.Request) Cost
	// CountIf lets only some outcomes count, by the status of the response, such as failed logins. The cost is reserved
	// before the handler runs, so attempts at the same time cannot exceed the limit, and refunded if it does not count.
	// A server that listens beyond loopback takes reservations only with store.key_secret_file; else OnFailure decides.
	CountIf func(status int) bool
	// Domain is that of the rules, and of the counters of Route.
	Domain string
	// Headers is the style of the header fields: "ietf" (if empty), "draft-7", "draft-6", "legacy", "none".
	Headers string
	// TrustedProxies are networks of proxies that may set X-Forwarded-For.
	TrustedProxies []string

	// Key returns the subject that Route limits, such as a user: the client's address if nil. False leaves the request
	// unlimited.
	Key func(*http.Request) (string, bool)
	// Name is that of the counters of Route: the pattern of the http.ServeMux, such as "POST /login", if empty. Equal names
	// in one Domain share their counters, even in two services.
	Name string
}

// Path is what the attribute "path" has.
type Path int

const (
	// PathOfRequest is the path of the request.
	PathOfRequest Path = iota
	// PathOfRoute is the path in the pattern of the http.ServeMux, such as /users/{id}. The middleware knows it inside the
	// mux only, around the handler of a pattern; outside, it takes the path of the request.
	PathOfRoute
)

// NewRateLimit makes middleware. Its error names an option that is not valid.
func NewRateLimit(client *Client, options RateLimitOptions) (*RateLimit, error) {
	if client == nil {
		return nil, fmt.Errorf("spillgate: a RateLimit needs a client; make one with New")
	}
	if options.Headers == "" {
		options.Headers = headerStyles[0]
	}
	if !slices.Contains(headerStyles, options.Headers) {
		return nil, fmt.Errorf("spillgate: Headers: expected one of %s, got %q", strings.Join(headerStyles, ", "), options.Headers)
	}
	if options.Path != PathOfRequest && options.Path != PathOfRoute {
		return nil, fmt.Errorf("spillgate: Path must be PathOfRequest or PathOfRoute, got %d", int(options.Path))
	}
	address, err := NewClientAddress(options.TrustedProxies...)
	if err != nil {
		return nil, err
	}
	return &RateLimit{client, options, address}, nil
}

// Handler limits the requests for a handler by the rules of the policy.
func (l *RateLimit) Handler(next http.Handler) http.Handler {
	return l.handler(next, l.requestByRules)
}

// Route limits the requests for a handler, such as 5/minute for each subject. It panics if the quota is not a valid one, as
// an http.ServeMux does with a pattern.
func (l *RateLimit) Route(quota string, next http.Handler) http.Handler {
	return l.RouteWith(InlineLimit{Quota: quota}, next)
}

// RouteWith limits the requests for a handler as Route does, by a limit with more than a quota.
func (l *RateLimit) RouteWith(limit InlineLimit, next http.Handler) http.Handler {
	if !limit.isQuota() {
		// The server would refuse every request, and OnFailure would let them all pass.
		panic(fmt.Sprintf("spillgate: %q is not a valid limit; write a count, a slash and a period, without spaces, "+
			`such as "5/minute" or "1_000/30s", or write "unlimited" or "block"`, limit.Quota))
	}
	return l.handler(next, func(r *http.Request) (Request, bool) { return l.requestByLimit(&limit, r) })
}

// FromContext returns the decision over the request that a handler serves.
func FromContext(ctx context.Context) (Decision, bool) {
	decision, has := ctx.Value(decisionKey{}).(Decision)
	return decision, has
}

type decisionKey struct{}

func (l *RateLimit) handler(next http.Handler, requestOf func(*http.Request) (Request, bool)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, isLimited := requestOf(r)
		if !isLimited {
			next.ServeHTTP(w, r)
			return
		}
		// A client that has gone is no silent server, and must be limited too. The time-out bounds the calls.
		ctx := context.WithoutCancel(r.Context())
		decision, err := l.decide(ctx, request)
		if err != nil {
			l.client.log.refused(l.counter(r), err)
			decision = l.client.withoutServer(err)
		}
		if !decision.Allowed {
			deny(w, decision)
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), decisionKey{}, decision))
		if decision.Receipt == "" && len(decision.Headers) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		limited := &limitedWriter{ResponseWriter: w, fields: decision.Headers, request: r.Context()}
		if decision.Receipt != "" {
			hasPanicked := true
			defer func() { l.end(ctx, decision.Receipt, limited.outcome(hasPanicked), limited.hasLeft) }()
			next.ServeHTTP(limited, r)
			hasPanicked = false
		} else {
			next.ServeHTTP(limited, r)
		}
		limited.begin(http.StatusOK)
	})
}

func (l *RateLimit) decide(ctx context.Context, request Request) (Decision, error) {
	if l.options.CountIf == nil {
		return l.client.Check(ctx, request)
	}
	reservation, err := l.client.Reserve(ctx, request, reservedFor)
	if err != nil {
		return Decision{}, err
	}
	return reservation.Decision, nil
}

// end ends the permits of a request, or refunds it if its outcome does not count. One whose client left before the response
// began stays charged, since leaving early must not be free. Without an end the request stays charged, and max_hold ends the
// permits.
func (l *RateLimit) end(ctx context.Context, receipt string, status int, hasLeft bool) {
	if l.options.CountIf != nil && !l.options.CountIf(status) && !hasLeft {
		_, _ = l.client.Cancel(ctx, receipt)
		return
	}
	_, _ = l.client.Release(ctx, receipt)
}

func (l *RateLimit) requestByRules(r *http.Request) (Request, bool) {
	attributes := map[string]string{
		"ip":     l.ip(r),
		"method": r.Method,
		"path":   separators.Replace(l.path(r)),
	}
	if l.options.Attributes != nil {
		more, isLimited := l.options.Attributes(r)
		if !isLimited {
			return Request{}, false
		}
		for name, value := range more {
			attributes[name] = value
		}
	}
	return l.withCost(Request{Attributes: attributes}, r), true
}

func (l *RateLimit) requestByLimit(limit *InlineLimit, r *http.Request) (Request, bool) {
	var subject string
	if l.options.Key == nil {
		subject = l.ip(r)
	} else {
		key, isLimited := l.options.Key(r)
		if !isLimited {
			return Request{}, false
		}
		// A long subject must not push the name out of the key.
		subject = bounded(key)
	}
	return l.withCost(Request{Key: routeKey(l.counter(r), subject), Limit: limit}, r), true
}

func (l *RateLimit) withCost(request Request, r *http.Request) Request {
	request.Domain, request.Headers = l.options.Domain, l.options.Headers
	if l.options.Cost != nil {
		request.Cost = l.options.Cost(r)
	}
	return request
}

// counter returns the name of the counters of a route. Nothing of it comes from the request.
func (l *RateLimit) counter(r *http.Request) string {
	if l.options.Name != "" {
		return l.options.Name
	}
	return r.Pattern
}

func (l *RateLimit) ip(r *http.Request) string {
	return l.address.Attribute(r.RemoteAddr, r.Header["X-Forwarded-For"])
}

// path returns the path of the request, or that of its pattern, which may begin with a method and a host.
func (l *RateLimit) path(r *http.Request) string {
	if l.options.Path == PathOfRoute {
		if slash := strings.IndexByte(r.Pattern, '/'); slash >= 0 {
			return r.Pattern[slash:]
		}
	}
	return r.URL.Path
}

var (
	// separators escapes what the server does not take for a part of the path.
	separators   = strings.NewReplacer("%", "%25", "?", "%3F", "#", "%23")
	headerStyles = []string{"ietf", "draft-7", "draft-6", "legacy", "none"}
)

// reservedFor is how long a request may take whose outcome decides whether it counts. Then it stays charged.
const reservedFor = 5 * time.Minute
