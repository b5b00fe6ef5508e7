package integration

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"culvert/integration/need"
)

// A browser is a headless Chromium with one empty page, which speaks the Chrome DevTools Protocol
// on a pair of pipes. It may be used by one goroutine.
type browser struct {
	t       *testing.T
	to      io.Writer
	from    *bufio.Reader
	session string // of the page
	calls   int
	faults  []string // errors of scripts, and what the policy of a page forbids
	asked   []string // addresses that the page has fetched
}

const browserTime = 2 * time.Minute // for all of a test

// newBrowser starts Chromium, which is stopped at the end of the test.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	in, toChild, err := os.Pipe()
	need.NoError(t, err)
	fromChild, out, err := os.Pipe()
	need.NoError(t, err)
	// Without the last four flags it contacts hosts of its vendor.
	cmd := need.Command(t, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--hide-scrollbars", "--remote-debugging-pipe", "--no-first-run",
		"--user-data-dir="+t.TempDir(), "--disable-quic", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "about:blank")
	cmd.ExtraFiles = []*os.File{in, out} // its descriptors 3 and 4
	need.NoError(t, cmd.Start())
	in.Close()
	out.Close()
	// If an answer does not come, killing Chromium ends the pipe, and so the test.
	stop := time.AfterFunc(browserTime, func() { cmd.Process.Kill() })
	t.Cleanup(func() {
		stop.Stop()
		toChild.Close() // Chromium ends when this does
		cmd.Wait()
		fromChild.Close()
	})
	b := &browser{t: t, to: toChild, from: bufio.NewReader(fromChild)}
	for b.session == "" { // Chromium answers before its page exists
		var targets struct {
			TargetInfos []struct{ TargetID, Type string }
		}
		b.call("Target.getTargets", nil, &targets)
		for _, target := range targets.TargetInfos {
			if target.Type == "page" {
				var attached struct{ SessionID string }
				b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
				b.session = attached.SessionID
			}
		}
	}
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// call calls a method of the protocol and waits for its result.
func (b *browser) call(method string, parameters, result any) {
	b.t.Helper()
	b.calls++
	request := map[string]any{"id": b.calls, "method": method}
	if parameters != nil {
		request["params"] = parameters
	}
	if b.session != "" {
		request["sessionId"] = b.session
	}
	text, err := json.Marshal(request)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.to.Write(append(text, 0)); err != nil {
		b.t.Fatalf("chromium: %s: %v", method, err)
	}
	for {
		text, err := b.from.ReadBytes(0)
		if err != nil {
			b.t.Fatalf("chromium: %s: %v", method, err)
		}
		var m struct {
			ID     int
			Method string
			Params json.RawMessage
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err := json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m); err != nil {
			b.t.Fatal(err)
		}
		if m.Method != "" {
			b.record(m.Method, m.Params)
		}
		if m.ID != b.calls {
			continue
		}
		if m.Error != nil {
			b.t.Fatalf("chromium: %s: %s", method, m.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(m.Result, result); err != nil {
				b.t.Fatal(err)
			}
		}
		return
	}
}

// record keeps what an event says about the page.
func (b *browser) record(method string, event json.RawMessage) {
	switch method {
	case "Runtime.exceptionThrown":
		b.faults = append(b.faults, string(event))
	case "Log.entryAdded":
		var e struct {
			Entry struct{ Source, Level, Text string }
		}
		if json.Unmarshal(event, &e) == nil && e.Entry.Level == "error" && e.Entry.Source != "network" {
			b.faults = append(b.faults, e.Entry.Text)
		}
	case "Network.requestWillBeSent":
		var e struct{ Request struct{ URL string } }
		if json.Unmarshal(event, &e) == nil && !strings.HasPrefix(e.Request.URL, "data:") {
			b.asked = append(b.asked, e.Request.URL)
		}
	}
}

// eval returns the value of an expression, which may be a promise.
func (b *browser) eval(expression string, value any) {
	b.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Exception struct{ Description string }
		}
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true},
		&r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, r.ExceptionDetails.Exception.Description)
	}
	if value != nil {
		if err := json.Unmarshal(r.Result.Value, value); err != nil {
			b.t.Fatalf("%s: %v", expression, err)
		}
	}
}

// wait waits until an expression is true.
func (b *browser) wait(expression string) {
	b.t.Helper()
	var last string
	b.eval(fmt.Sprintf(`new Promise(done => {
		const end = performance.now() + 10000, look = () => {
			let is = false;
			try { is = %s } catch {}
			if (is) done("");
			else if (performance.now() > end) done(document.body.innerText || "nothing");
			else requestAnimationFrame(look);
		};
		look();
	})`, expression), &last)
	if last != "" {
		b.t.Fatalf("not so: %s; the page says:\n%s", expression, last)
	}
}

// size gives the window the size of some device.
func (b *browser) size(width, height int) {
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height,
		"deviceScaleFactor": 1, "mobile": false}, nil)
}

// prefers sets a preference of the user, such as prefers-color-scheme: dark.
func (b *browser) prefers(feature, value string) {
	b.call("Emulation.setEmulatedMedia",
		map[string]any{"features": []map[string]string{{"name": feature, "value": value}}}, nil)
}

// key presses a key, such as Tab or Enter.
func (b *browser) key(name string, code int) {
	for _, kind := range []string{"keyDown", "keyUp"} {
		event := map[string]any{"type": kind, "key": name, "code": name, "windowsVirtualKeyCode": code}
		if name == "Enter" && kind == "keyDown" {
			event["text"] = "\r"
		}
		b.call("Input.dispatchKeyEvent", event, nil)
	}
}

// picture writes the whole page as a PNG into the folder that CULVERT_PICTURES names, if that is
// set.
func (b *browser) picture(name string) {
	b.t.Helper()
	dir := os.Getenv("CULVERT_PICTURES")
	if dir == "" {
		return
	}
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err := errors.Join(err, os.WriteFile(dir+"/"+name+".png", png, 0o644)); err != nil {
		b.t.Fatal(err)
	}
}
