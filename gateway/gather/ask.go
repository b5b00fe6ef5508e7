package gather

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"culvert/gateway/control"
)

// Asked is a gateway or a node, which answers the questions of its control socket.
type Asked interface {
	// Open asks; question is the last part of a path under /v1.
	Open(ctx context.Context, question string) (io.ReadCloser, error)
}

// Socket is an Asked on this machine.
type Socket struct{ *control.Client }

// Open asks.
func (s Socket) Open(ctx context.Context, question string) (io.ReadCloser, error) {
	response, err := s.Client.Open(ctx, http.MethodGet, "/v1/"+question, nil, nil)
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

const (
	patience   = 30 * time.Second // for one answer
	maxAnswer  = 64 << 20         // bytes
	maxCounted = 100_000          // connections
)

// Files of statuses.
const (
	StatusFile = "status.json" // a control.Status
	NodeFile   = "node.json"   // a control.NodeStatus
)

// AskGateway adds what a gateway answers.
func (a *Archive) AskGateway(ctx context.Context, g Asked, place ...string) {
	if !ask(ctx, a, g, "status", StatusFile, place, one) {
		return // it would not answer the others either
	}
	ask(ctx, a, g, "doctor", "doctor.json", place, one)
	ask(ctx, a, g, "rules", "rules.json", place, list)
	ask(ctx, a, g, "routes", "routes.json", place, list)
	ask(ctx, a, g, "connections", "connections.json", place, count)
}

// AskNode adds what a node answers.
func (a *Archive) AskNode(ctx context.Context, n Asked, place ...string) {
	ask(ctx, a, n, "node", NodeFile, place, one)
}

func ask(ctx context.Context, a *Archive, g Asked, question, file string, place []string,
	read func(*json.Decoder) (any, error)) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := g.Open(ctx, question)
	var v any
	if err == nil {
		limited := &io.LimitedReader{R: answer, N: maxAnswer}
		v, err = read(json.NewDecoder(limited))
		if limited.N <= 0 {
			err = fmt.Errorf("the answer has more than %d MiB", maxAnswer>>20)
		}
		err = errors.Join(err, answer.Close())
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v", patience)
	}
	if err != nil {
		a.Miss(question, err, place...)
		return false
	}
	a.AddJSON(file, v, place...)
	return true
}

// one reads one value.
func one(d *json.Decoder) (any, error) {
	var v json.RawMessage
	return v, d.Decode(&v)
}

// list reads a value per line.
func list(d *json.Decoder) (any, error) {
	all := []json.RawMessage{}
	for {
		var v json.RawMessage
		switch err := d.Decode(&v); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, v)
	}
}

// Counts are the numbers of connections of each kind.
type Counts struct {
	Connections int     `json:"connections"`
	More        bool    `json:"more"` // there are more, which were not counted
	Kinds       []Count `json:"kinds"`
}

// A Count is the number of connections that have all of this in common.
type Count struct {
	connectionKind
	Connections int    `json:"connections"`
	Sent        uint64 `json:"sentBytes"`
	Received    uint64 `json:"receivedBytes"`
}

type connectionKind struct {
	Protocol     string `json:"protocol"`
	State        string `json:"state"`
	From         string `json:"from"`
	To           string `json:"to"`
	Refused      string `json:"refused,omitempty"`
	RefusedReply string `json:"refusedReply,omitempty"`
}

// count counts connections, whose addresses it leaves out.
func count(d *json.Decoder) (any, error) {
	kinds := map[connectionKind]*Count{}
	all := Counts{Kinds: []Count{}}
	for {
		var c control.Connection
		err := d.Decode(&c)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if all.More = err == nil && all.Connections == maxCounted; err != nil || all.More {
			break
		}
		kind := connectionKind{c.Protocol, c.State, c.From, c.To, c.Refused, c.RefusedReply}
		if kinds[kind] == nil {
			kinds[kind] = &Count{connectionKind: kind}
		}
		k := kinds[kind]
		k.Connections++
		k.Sent += c.Sent.Bytes
		k.Received += c.Received.Bytes
		all.Connections++
	}
	for _, k := range kinds {
		all.Kinds = append(all.Kinds, *k)
	}
	slices.SortFunc(all.Kinds, func(a, b Count) int {
		return cmp.Or(b.Connections-a.Connections, strings.Compare(fmt.Sprint(a.connectionKind),
			fmt.Sprint(b.connectionKind)))
	})
	return all, nil
}
