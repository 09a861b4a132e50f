package spillgate

import (
	"encoding/json"
	"net/http"
)

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
	case ReasonLimitExceeded, ReasonCostExceedsLimit:
	case ReasonBlocked:
		details.Status = http.StatusForbidden
	default:
		details.Type, details.Title = problemTypes+"temporary-reduced-capacity", "Temporarily reduced capacity"
		details.Status = http.StatusServiceUnavailable
	}
	return details
}

func detailOf(decision Decision) string {
	switch decision.Reason {
	case ReasonLimitExceeded:
		if seconds := decision.Headers["retry-after"]; seconds != "" {
			return "Try again in " + seconds + " s."
		}
		return "The limit has no room at the moment."
	case ReasonCostExceedsLimit:
		return "The cost is larger than the limit can ever hold."
	case ReasonBlocked:
		return "Requests like this one are blocked."
	case ReasonOverloaded:
		return "The rate limiter is overloaded."
	}
	return "The rate limiter cannot reach its store."
}

const problemTypes = "https://iana.org/assignments/http-problem-types#"
