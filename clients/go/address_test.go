package spillgate

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestClientAddress runs clients/conformance/addresses.json.
func TestClientAddress(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(conformanceFolder(), "addresses.json"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		TrustedProxies []string `json:"trusted_proxies"`
		Peer           string   `json:"peer"`
		ForwardedFor   []string `json:"forwarded_for"`
		IP             string   `json:"ip"`
	}
	if err := json.Unmarshal(text, &rows); err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		address, err := NewClientAddress(row.TrustedProxies...)
		if err != nil {
			t.Fatal(err)
		}
		if ip := address.Attribute(row.Peer, row.ForwardedFor); ip != row.IP {
			t.Errorf("%+v: got %q", row, ip)
		}
	}
}

func TestRefusesWhatIsNoNetwork(t *testing.T) {
	for _, text := range []string{"10.0.0.0/33", "::/129", "10.0.0.0/", "local", ""} {
		_, err := NewClientAddress(text)
		if err == nil || !strings.Contains(err.Error(), "is not a valid network; write one such as 10.0.0.0/8") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
