package control

import "context"

// A Condition is one thing that a machine gives a gateway, or does not.
type Condition struct {
	Name   string `json:"name"`
	State  string `json:"state"` // good; poor: it costs something; bad: a gateway cannot work so
	Found  string `json:"found"`
	Costs  string `json:"costs,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// Doctor asks the gateway what its machine gives it.
func (c *Client) Doctor(ctx context.Context) (conditions []Condition, err error) {
	return conditions, c.Get(ctx, "GET", "/v1/doctor", nil, &conditions)
}
