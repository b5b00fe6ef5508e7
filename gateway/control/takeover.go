package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// TakeoverOptions identify a process that wants to take over: its configuration must be for the
// same gateway, and it must speak the same version of package handover's protocol.
type TakeoverOptions struct {
	Protocol      int
	Cluster, Peer string
}

// takeoverSource is a Source that can hand over to another process.
type takeoverSource interface {
	// HandOver returns the old process's side of the conversation, or an error. The conversation
	// owns the connection.
	HandOver(o TakeoverOptions) (talk func(*net.UnixConn), err error)
}

// upgrade is the protocol name of the HTTP upgrade.
const upgrade = "culvert-takeover"

func serveTakeover(s Source) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		protocol, _ := strconv.Atoi(q.Get("protocol"))
		if r.Header.Get("Upgrade") != upgrade {
			refuse(w, errors.New("not with this client: culvert gateway --takeover asks for it"))
			return
		}
		talk, err := s.HandOver(TakeoverOptions{protocol, q.Get("cluster"), q.Get("peer")})
		if err != nil {
			refuse(w, err)
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			talk(nil)
			return
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(answerTime))
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", upgrade)
		inner := conn
		for {
			wrapper, ok := inner.(interface{ NetConn() net.Conn })
			if !ok {
				break
			}
			inner = wrapper.NetConn()
		}
		unix, _ := inner.(*net.UnixConn)
		talk(unix)
	}
}

// TakeOver asks the gateway at a socket to hand over, and returns the connection for the
// conversation, which must be closed.
func TakeOver(ctx context.Context, socket string, o TakeoverOptions) (*net.UnixConn, error) {
	c := NewClient(socket)
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, c.explain(err)
	}
	unix := conn.(*net.UnixConn)
	if err := o.ask(ctx, unix); err != nil {
		unix.Close()
		return nil, fmt.Errorf("%s: %w", socket, err)
	}
	return unix, nil
}

func (o *TakeoverOptions) ask(ctx context.Context, conn *net.UnixConn) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(answerTime)
	}
	conn.SetDeadline(deadline)
	defer conn.SetDeadline(time.Time{})
	query := url.Values{"protocol": {strconv.Itoa(o.Protocol)}, "cluster": {o.Cluster}, "peer": {o.Peer}}
	fmt.Fprintf(conn,
		"POST /v1/takeover?%s HTTP/1.1\r\nHost: gateway\r\nConnection: Upgrade\r\nUpgrade: %s\r\nContent-Length: 0\r\n\r\n", query.Encode(), upgrade)
	// Byte by byte: the answer is followed by descriptors, which a longer read would lose.
	response, err := http.ReadResponse(bufio.NewReaderSize(oneByte{conn}, 16), nil)
	if err != nil {
		return fmt.Errorf("the gateway gave no answer: %w", err)
	}
	if response.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	var e Error
	text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if json.Unmarshal(text, &e) != nil || e.Message == "" {
		e.Message = response.Status
	}
	return &e
}

// oneByte reads one byte at a time.
type oneByte struct{ io.Reader }

func (r oneByte) Read(b []byte) (int, error) { return r.Reader.Read(b[:min(1, len(b))]) }
