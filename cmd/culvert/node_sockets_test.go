package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"culvert/gateway/node"
	"culvert/integration/need"
)

// TestSocketsElsewhere: a node that is to serve at an address of another machine by sockets does
// not start, and says why.
func TestSocketsElsewhere(t *testing.T) {
	name := filepath.Join(t.TempDir(), "node.yaml")
	need.NoError(t, os.WriteFile(name,
		[]byte("name: n1\nservices: {mode: sockets, addresses: [192.0.2.1], serve: [{name: web, port: 80, nodePort: 30080}]}\n"), 0o600))
	c, err := node.LoadConfig(name)
	need.NoError(t, err)
	serve, _, err := serveFile(c.Services, nil, logrus.New())
	if serve != nil || err == nil || !strings.Contains(err.Error(), "192.0.2.1") {
		t.Errorf("it serves: %t, %v", serve != nil, err)
	}
}
