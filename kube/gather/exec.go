package gather

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"culvert/gateway/control"
)

// A pod is asked by culvert's commands in it, as kubectl exec runs them: only its user may open the
// socket.
type pod struct {
	cluster                    *Cluster
	namespace, path, container string
	name                       string // of the socket, once it is known
}

// Open runs the command for a question.
func (p *pod) Open(ctx context.Context, question string) (io.ReadCloser, error) {
	command := []string{"culvert", question, "-o", "json"}
	switch question {
	case "node":
		command[1] = "status"
	case "doctor":
		command = append(command, "--socket", p.name) // else it would examine the pod
	}
	out, err := p.exec(ctx, command)
	if err != nil {
		return nil, denied(err, "exec into pods in namespace "+p.namespace)
	}
	if question != "status" {
		return out, nil
	}
	defer out.Close()
	text, err := io.ReadAll(out)
	if err != nil {
		return nil, err
	}
	var s control.Status
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("read its status: %w", err)
	}
	p.name = strings.TrimPrefix(s.Cluster+"-"+s.Peer, "-")
	return io.NopCloser(bytes.NewReader(text)), nil
}

// exec runs a command, and returns its standard output, which ends with an error if the command
// fails.
func (p *pod) exec(ctx context.Context, command []string) (io.ReadCloser, error) {
	var nonce [16]byte
	rand.Read(nonce[:]) // never fails (crypto/rand)
	response, err := p.cluster.request(ctx, p.path+"/exec", url.Values{"container": {p.container}, "command": command,
		"stdout": {"true"}, "stderr": {"true"}}, http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key":      {base64.StdEncoding.EncodeToString(nonce[:])},
		"Sec-Websocket-Protocol": {"v5.channel.k8s.io, v4.channel.k8s.io"},
	}, http.StatusSwitchingProtocols)
	if err != nil {
		return nil, err
	}
	o := &output{frames: bufio.NewReader(response.Body), body: response.Body}
	o.stop = context.AfterFunc(ctx, func() { response.Body.Close() })
	return o, nil
}

// An output is the standard output of a command in a pod: binary messages of a WebSocket (RFC 6455,
// Section 5.2), each with the number of its stream first (v4.channel.k8s.io). client-go's own
// client would add all types of Kubernetes' API to the program, a seventh of its size.
type output struct {
	frames *bufio.Reader
	body   io.Closer
	stop   func() bool
	left   uint64 // bytes of the frame at hand
	stream byte   // of the message at hand
	said   []byte // on standard error
	ended  error  // how the command has ended; nil: it has not
}

// The streams.
const (
	streamOut   = 1
	streamErr   = 2
	streamError = 3 // a metav1.Status, at the end
)

// Opcodes.
const (
	opContinuation = 0
	opText         = 1
	opBinary       = 2
	opClose        = 8
)

// maxFrame is more than an API server sends at once.
const maxFrame = 1 << 26

// maxError is how much of a message is kept that is no output.
const maxError = 4 << 10

// Read reads the output.
func (o *output) Read(b []byte) (int, error) {
	for {
		if o.left > 0 && o.stream == streamOut {
			n, err := o.frames.Read(b[:min(uint64(len(b)), o.left)])
			o.left -= uint64(n)
			return n, cutOff(err)
		}
		if err := o.next(); err != nil {
			return 0, err
		}
	}
}

// next reads the head of a frame, and all of a frame that is no output.
func (o *output) next() error {
	var head [2]byte
	if _, err := io.ReadFull(o.frames, head[:]); err != nil {
		return o.end(err)
	}
	op, long := head[0]&0xf, head[1]&0x7f
	if head[0]&0x70 != 0 || head[1]&0x80 != 0 { // extensions that nobody asked for; a server does not mask
		return errors.New("the API server sends what is no WebSocket")
	}
	o.left = uint64(long)
	if long >= 126 {
		size := make([]byte, 2+6*(long-126))
		if _, err := io.ReadFull(o.frames, size); err != nil {
			return cutOff(err)
		}
		o.left = binary.BigEndian.Uint64(append(make([]byte, 8-len(size)), size...))
	}
	switch {
	case o.left > maxFrame:
		return fmt.Errorf("the API server sends a frame of %d bytes", o.left)
	case op == opClose:
		return o.end(io.EOF)
	case op == opText, op == opBinary:
		if o.left == 0 {
			o.stream = 0
			return nil
		}
		stream, err := o.frames.ReadByte()
		if err != nil {
			return cutOff(err)
		}
		o.stream, o.left = stream, o.left-1
	case op != opContinuation: // a ping, in the midst of a message
		left := o.left
		o.left = 0
		_, err := io.CopyN(io.Discard, o.frames, int64(left))
		return cutOff(err)
	}
	if o.stream == streamOut {
		return nil
	}
	return o.other(head[0]&0x80 != 0)
}

// end returns the error for a stream that has ended.
func (o *output) end(err error) error {
	if o.ended != nil {
		return o.ended
	}
	return cutOff(err)
}

// other reads a frame that is no output. One says how the command has ended; output may follow it.
func (o *output) other(final bool) error {
	text, err := io.ReadAll(io.LimitReader(o.frames, int64(min(o.left, maxError))))
	if err == nil {
		_, err = io.CopyN(io.Discard, o.frames, int64(o.left)-int64(len(text)))
	}
	if o.left = 0; err != nil {
		return cutOff(err)
	}
	switch o.stream {
	case streamErr:
		o.said = append(o.said, text[:min(len(text), maxError-len(o.said))]...)
	case streamError:
		var s metav1.Status
		if err := json.Unmarshal(text, &s); err != nil || !final {
			return fmt.Errorf("the command ends without a status: %s", text)
		}
		if o.ended = io.EOF; s.Status != metav1.StatusSuccess {
			o.ended = errors.New(cmp.Or(strings.TrimSpace(string(o.said)), s.Message))
		}
	}
	return nil
}

// cutOff returns the error for a stream that ends early.
func cutOff(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the connection to the pod has ended early")
	}
	return err
}

// Close ends the connection.
func (o *output) Close() error {
	o.stop()
	return o.body.Close()
}
