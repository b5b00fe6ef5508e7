// Package template turns Liqo's own gateway templates into templates that start culvert, and
// renders them as Liqo's operator does.
//
// Liqo's operator renders a WgGatewayServerTemplate or WgGatewayClientTemplate for each gateway and
// passes the result to the controller that makes the Deployment. A template that differs only in
// the pod's containers can replace another while the Deployment stays, because the Deployment's
// immutable selector is the same.
//
// Objects are as in JSON. Nothing here talks to a cluster.
package template
