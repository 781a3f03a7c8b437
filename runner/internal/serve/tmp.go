package serve

type process struct{ slot *slotState }
type session struct{ slot string }

func (s *Server) runInSession(c *conversation, slot *slotState, agent *Agent, p *commandParams) (any, error) {
	return nil, badRequest("no sessions")
}
