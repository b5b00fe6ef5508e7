// Package template makes of Liqo's own gateway templates those that start culvert instead, and renders them as Liqo's operator does.
//
// Liqo's operator renders a WgGatewayServerTemplate or WgGatewayClientTemplate for each gateway and hands the outcome to the
// controller that makes the Deployment. A template that says the same about everything but the pod's containers can be put in the
// place of another while the Deployment stays: its selector, which nobody can change, is the same.
//
// Objects are as JSON has them. Nothing here speaks to a cluster.
package template
