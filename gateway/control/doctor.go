package control

import "context"

// A Condition is one thing that a gateway needs from its machine, and whether it has it.
type Condition struct {
	Name   string `json:"name"`
	State  string `json:"state"` // good; poor: it costs something; bad: a gateway cannot work
	Found  string `json:"found"`
	Costs  string `json:"costs,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// Doctor asks the gateway about the conditions of its machine.
func (c *Client) Doctor(ctx context.Context) (conditions []Condition, err error) {
	return conditions, c.Get(ctx, "GET", "/v1/doctor", nil, &conditions)
}
