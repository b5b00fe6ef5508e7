package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/config"
	"culvert/integration/need"
)

// TestJSONHasTheValuesOfText: whatever is logged reads the same in both formats.
func TestJSONHasTheValuesOfText(t *testing.T) {
	log, err := newLogger("info", "json")
	need.NoError(t, err)
	fields := logrus.Fields{
		"role": config.Server, "after": 90 * time.Second, "endpoint": netip.MustParseAddrPort("192.0.2.7:51840"),
		"addr": netip.MustParseAddr("10.80.0.2"),
		"real": netip.MustParsePrefix("10.0.0.0/16"), "nodes": 2, "port": uint16(6091), "again": true, "name": "rome-1",
		"prefixes": []netip.Prefix{},
	}
	var out bytes.Buffer
	log.SetOutput(&out)
	log.WithFields(fields).WithError(errors.New("no")).Info("said")
	var got map[string]any
	need.NoError(t, json.Unmarshal(out.Bytes(), &got))
	fields["error"], fields["msg"], fields["level"] = "no", "said", "info"
	for key, value := range fields {
		if fmt.Sprint(got[key]) != fmt.Sprint(value) {
			t.Errorf("%s is %v, text has %v", key, got[key], value)
		}
	}
	if n, ok := got["nodes"].(float64); !ok || n != 2 {
		t.Errorf("a number is %v", got["nodes"])
	}
}
