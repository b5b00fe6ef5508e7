package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"unicode"

	"github.com/sirupsen/logrus"
	"golang.zx2c4.com/wireguard/device"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/wgkey"
	"culvert/geneve/genevetest"
	"culvert/integration/need"
)

// logLines collects a logger's output line by line.
func logLines(t *testing.T, formatter logrus.Formatter) (*logrus.Logger, <-chan string) {
	r, w := io.Pipe()
	t.Cleanup(func() { w.Close() })
	log := logrus.New()
	log.SetOutput(w)
	log.SetFormatter(formatter)
	log.SetLevel(logrus.TraceLevel)
	lines := make(chan string, 10_000)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return log, lines
}

// TestLogInjection runs gateways with names and endpoints that contain line breaks and control
// characters, and sends arbitrary data from unknown senders. Each log entry must stay one line.
func TestLogInjection(t *testing.T) {
	const forged = "\nlevel=error msg=forged time=\"now\"\r\x1b[31m\x00\u2028\x85"
	for name, formatter := range map[string]logrus.Formatter{"text": new(logrus.TextFormatter),
		"json": new(logrus.JSONFormatter)} {
		t.Run(name, func(t *testing.T) {
			log, lines := logLines(t, formatter)
			c := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
			c.Cluster += forged
			c.Peer += forged
			c.Geneve.Nodes[0].Name += forged
			c.WireGuard.PeerPublicKey = wgkey.NewPrivate().Public()
			c.WireGuard.Endpoint = "no" + forged + ".invalid:51840"
			cl := open(t, c, 40, log, nil)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- cl.Run(ctx) }()

			stranger, err := net.Dial("udp4", fmt.Sprintf("127.0.0.1:%d", cl.wg.Port()))
			need.NoError(t, err)
			defer stranger.Close()
			known := bareMessage(device.MessageInitiationType, device.MessageInitiationSize)
			var macs device.CookieGenerator
			macs.Init(device.NoisePublicKey(c.WireGuard.PrivateKey.Public()))
			macs.AddMacs(known)
			for _, m := range [][]byte{
				known,
				bareMessage(device.MessageInitiationType, device.MessageInitiationSize),
				bareMessage(device.MessageCookieReplyType, device.MessageCookieReplySize),
				bareMessage(device.MessageTransportType, device.MessageKeepaliveSize),
				[]byte(forged),
			} {
				stranger.Write(m)
			}
			cl.nodes[0].SendRaw(genevetest.Geneve(11, 0x6558, []byte(forged)))
			seen, endpoint := 0, false
			for !endpoint {
				line := <-lines
				seen++
				checkLogLine(t, name, line)
				endpoint = strings.Contains(line, ".invalid")
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			log.SetOutput(io.Discard)
			for len(lines) > 0 {
				checkLogLine(t, name, <-lines)
			}
		})
	}
}

// An endAtApply stops a gateway as soon as it logs that it has applied a configuration.
type endAtApply struct{ end func() }

func (endAtApply) Levels() []logrus.Level { return logrus.AllLevels }

func (h endAtApply) Fire(e *logrus.Entry) error {
	if strings.HasPrefix(e.Message, "configuration applied") {
		h.end()
	}
	return nil
}

// TestLogLevel: a new log level is in force before anything else is logged, although the gateway
// stops at once.
func TestLogLevel(t *testing.T) {
	log, lines := logLines(t, new(logrus.TextFormatter))
	c := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	c.WireGuard.PeerPublicKey = wgkey.NewPrivate().Public()
	cl := open(t, c, 41, log, nil)
	ctx, cancel := context.WithCancel(t.Context())
	log.AddHook(endAtApply{cancel})
	done := make(chan error)
	go func() { done <- cl.Run(ctx) }()
	for line := range lines {
		if strings.Contains(line, "gateway running") {
			break
		}
	}
	changed := *c
	changed.Log.Level = "error"
	need.NoError(t, cl.Apply(&changed))
	need.NoError(t, <-done)
	log.SetOutput(io.Discard)
	for len(lines) > 0 {
		if line := <-lines; strings.Contains(line, "stopping") {
			t.Errorf("at level error: %s", line)
		}
	}
	if log.GetLevel() != logrus.ErrorLevel {
		t.Errorf("level %v", log.GetLevel())
	}
}

// bareMessage returns a WireGuard message of a type and size that belongs to no session.
func bareMessage(kind byte, size int) []byte {
	m := make([]byte, size)
	m[0] = kind
	return m
}

// checkLogLine fails unless a line is one whole entry without control characters.
func checkLogLine(t *testing.T, format, line string) {
	t.Helper()
	var entry struct{ Time, Level, Msg string }
	switch {
	case strings.ContainsFunc(line, unicode.IsControl):
		t.Errorf("control characters in %q", line)
	case format == "json":
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Time == "" || entry.Msg == "forged" {
			t.Errorf("no entry: %q", line)
		}
	case !strings.HasPrefix(line, "time=") || strings.HasPrefix(line, "level="):
		t.Errorf("no entry: %q", line)
	}
}
