package services

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"
	"time"
)

// Who opens connections to the page and says nothing takes no more descriptors than there are for it; the next one waits.
func TestPageCap(t *testing.T) {
	page, err := NewPage("127.0.0.1:0", func() string { return "" }, func() string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	go page.Serve()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", page.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	var silent []net.Conn
	for range maxPages {
		silent = append(silent, dial())
	}
	asks := dial()
	fmt.Fprint(asks, "GET /healthz HTTP/1.0\r\n\r\n")
	asks.SetReadDeadline(time.Now().Add(requestTime / 20))
	if n, err := asks.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("beside %d connections %d bytes are answered: %v", maxPages, n, err)
	}
	silent[0].Close()
	asks.SetReadDeadline(time.Now().Add(requestTime))
	r, err := http.ReadResponse(bufio.NewReader(asks), nil)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("when one has gone: %v, %v", r, err)
	}
}
