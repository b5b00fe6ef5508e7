package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"culvert/geneve/genevetest"
)

// asStranger calls fn on a thread whose access to files is that of another user. The test
// needs root.
func asStranger(t *testing.T, fn func() error) error {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("probe root: not root")
	}
	const nobody = 65534
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with it
		// Both are the thread's own, and the second takes its capabilities away.
		if err := errors.Join(unix.Setfsgid(nobody), unix.Setfsuid(nobody)); err != nil {
			done <- err
			return
		}
		done <- fn()
	}()
	return <-done
}

// TestStrangerFiles: another user of the machine neither reads the WireGuard state from
// the UAPI socket, nor puts a socket into its place.
func TestStrangerFiles(t *testing.T) {
	cluster := fmt.Sprintf("t%d", os.Getpid())
	path := filepath.Join(uapiDirectory, "cv-"+cluster+".sock")
	dial := func() error {
		c, err := net.Dial("unix", path)
		if err == nil {
			c.Close()
		}
		return err
	}
	if err := asStranger(t, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	old := unix.Umask(0) // the gateway must not count on its parent's
	l, err := listenUAPI(cluster)
	unix.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := dial(); err != nil {
		t.Errorf("its owner: %v", err)
	}
	for name, try := range map[string]func() error{
		"connects to the socket": dial,
		"removes the socket":     func() error { return os.Remove(path) },
		"renames the socket":     func() error { return os.Rename(path, path+"x") },
		"opens it to all":        func() error { return os.Chmod(path, 0o666) },
		"makes a socket beside it": func() error {
			l, err := net.Listen("unix", path+"y")
			if err == nil {
				l.Close()
			}
			return err
		},
	} {
		if err := asStranger(t, try); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("a stranger %s: %v", name, err)
		}
	}
}

// logLines are a logger's output, line by line.
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

// TestLogInjection runs gateways whose names and endpoint hold line breaks and control
// characters, and has strangers send what they like. Each entry of the log stays one line.
func TestLogInjection(t *testing.T) {
	const forged = "\nlevel=error msg=forged time=\"now\"\r\x1b[31m\x00\u2028\x85"
	for name, formatter := range map[string]logrus.Formatter{"text": new(logrus.TextFormatter), "json": new(logrus.JSONFormatter)} {
		t.Run(name, func(t *testing.T) {
			log, lines := logLines(t, formatter)
			c := clusterConfig("rome", "milan", Client, "10.61.0.0/16", "10.71.0.0/16")
			c.Cluster += forged
			c.Peer += forged
			c.Geneve.Nodes[0].Name += forged
			c.WireGuard.PeerPublicKey = NewPrivateKey().Public()
			c.WireGuard.Endpoint = "no" + forged + ".invalid:51840"
			cl := open(t, c, 40, log, nil)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- cl.Run(ctx) }()

			stranger, err := net.Dial("udp4", fmt.Sprintf("127.0.0.1:%d", cl.bind.port()))
			if err != nil {
				t.Fatal(err)
			}
			defer stranger.Close()
			for _, m := range append(paced(), message(1, 148, c.WireGuard.PrivateKey.Public()), []byte(forged)) {
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

// checkLogLine wants one whole entry, without a control character.
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
